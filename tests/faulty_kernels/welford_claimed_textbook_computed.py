"""Claims Welford and computes mean(x^2) - mean^2: claim must catch it."""

import torch

from verifier import Domain, subject


@subject(
    op="layer_norm",
    language="torch",
    variance="welford",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e2),
    dtypes=("float32",),
    differentiable=False,
)
def welford_claimed_textbook_computed(input, weight=None, bias=None, eps=1e-5):
    x = input.detach().float()
    mean = x.mean(-1, keepdim=True)
    variance = x.square().mean(-1, keepdim=True) - mean.square()  # the bug: another algorithm
    rstd = 1 / torch.sqrt(variance.clamp(min=0) + eps)
    out = (x - mean) * rstd
    out = out if weight is None else out * weight.detach()
    out = out if bias is None else out + bias.detach()
    return out.to(input.dtype)
