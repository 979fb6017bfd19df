"""Takes a tiny eps for a larger one, as a guard against division by zero: forward_error must catch it."""

import torch

from verifier import Domain, subject


@subject(
    op="layer_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float32",),
    differentiable=False,
)
def tiny_eps_raised(input, weight=None, bias=None, eps=1e-5):
    x = input.detach().float()
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    rstd = 1 / torch.sqrt(variance + max(eps, 1e-12))  # the bug
    out = (x - mean) * rstd
    out = out if weight is None else out * weight.detach()
    out = out if bias is None else out + bias.detach()
    return out.to(input.dtype)
