"""Normalizes the sum as it is stored, where the declaration says as it was: forward_error must catch it."""

import torch

from verifier import Domain, subject


@subject(
    op="add_layer_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    formula="kept_sum",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("bfloat16",),
    returns=("output", "new_residual"),
    differentiable=False,
)
def sum_rounded_declared_kept(input, residual, weight=None, bias=None, eps=1e-5):
    stored = input + residual  # the bug: torch rounds it, where a fused kernel keeps it in fp32
    total = stored.float()
    deviation = total - total.mean(-1, keepdim=True)
    out = deviation / torch.sqrt(deviation.square().mean(-1, keepdim=True) + eps)
    out = out if weight is None else out * weight.float()
    out = out if bias is None else out + bias.float()
    return out.to(input.dtype), stored
