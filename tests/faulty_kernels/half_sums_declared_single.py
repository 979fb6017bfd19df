"""Sums in the input's dtype and declares fp32: forward_error must catch it."""

import torch

from verifier import Domain, subject


def _sum_in_order(x):
    total = torch.zeros_like(x[..., :1])
    for column in range(x.shape[-1]):
        total = total + x[..., column : column + 1]
    return total


@subject(
    op="layer_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float16", "bfloat16"),
    differentiable=False,
)
def half_sums_declared_single(input, weight=None, bias=None, eps=1e-5):
    x = input.detach()  # the bug: every partial result is rounded to the input's dtype
    columns = max(x.shape[-1], 1)
    mean = _sum_in_order(x) / columns
    variance = _sum_in_order((x - mean).square()) / columns
    rstd = 1 / torch.sqrt(variance + eps)
    out = (x - mean) * rstd
    out = out if weight is None else out * weight.detach()
    out = out if bias is None else out + bias.detach()
    return out.to(input.dtype)
