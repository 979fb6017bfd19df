"""Adds 0 times the sum of the whole batch: special_values must catch it."""

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
def nan_spreads_to_next_row(input, weight=None, bias=None, eps=1e-5):
    x = input.detach().float()
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    rstd = 1 / torch.sqrt(variance + eps)
    # The bug: 0 times a number of the whole batch is 0, until one row holds NaN or infinity.
    out = (x - mean) * rstd + 0.0 * (x.sum() if x.numel() else 0.0)
    out = out if weight is None else out * weight.detach()
    out = out if bias is None else out + bias.detach()
    return out.to(input.dtype)
