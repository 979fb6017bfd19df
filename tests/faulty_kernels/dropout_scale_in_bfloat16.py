"""Rounds 1 / (1 - p) to bfloat16, which holds powers of two: forward_error must catch it with another p."""

import torch

from verifier import Domain, subject


@subject(
    op="dropout_add_layer_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float32",),
    differentiable=False,
    returns=("output", "new_residual"),
)
def dropout_scale_in_bfloat16(input, residual, dropout_mask, *, weight=None, bias=None, eps=1e-5, p=0.5):
    scale = torch.tensor(1 / (1 - p), dtype=torch.bfloat16).float()  # the bug
    total = torch.where(dropout_mask, input * scale, 0.0) + residual
    away = total - total.mean(-1, keepdim=True)
    out = away / torch.sqrt(away.square().mean(-1, keepdim=True) + eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias, total
