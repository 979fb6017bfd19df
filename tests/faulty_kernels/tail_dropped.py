"""Leaves the last elements of a row out of the variance: forward_error must catch it."""

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
def tail_dropped(input, weight=None, bias=None, eps=1e-5):
    x = input.detach().float()
    mean = x.mean(-1, keepdim=True)
    # The bug: only whole vectors of 4 are read; the mean has seen all of the row.
    read = x.shape[-1] // 4 * 4 or x.shape[-1]
    deviations = (x - mean)[..., :read]
    variance = deviations.square().sum(-1, keepdim=True) / max(x.shape[-1], 1)
    rstd = 1 / torch.sqrt(variance + eps)
    out = (x - mean) * rstd
    out = out if weight is None else out * weight.detach()
    out = out if bias is None else out + bias.detach()
    return out.to(input.dtype)
