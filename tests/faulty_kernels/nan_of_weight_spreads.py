"""Adds 0 times the sum of weight: special_values must catch it."""

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
def nan_of_weight_spreads(input, weight=None, bias=None, eps=1e-5):
    x = input.detach().float()
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    rstd = 1 / torch.sqrt(variance + eps)
    out = (x - mean) * rstd
    if weight is not None:
        # The bug: 0 times a number of all columns is 0, until the weight of one holds NaN or infinity.
        out = out * weight.detach() + 0.0 * weight.detach().sum()
    out = out if bias is None else out + bias.detach()
    return out.to(input.dtype)
