"""Normalizes the sum before it is rounded, where the declaration says after: forward_error must catch it."""

import torch

from verifier import Domain, subject


@subject(
    op="add_rms_norm",
    language="torch",
    variance="rms",
    accumulates="float32",
    formula="canonical",
    domain=Domain(max_abs=1e15),
    dtypes=("bfloat16",),
    returns=("output", "new_residual"),
    differentiable=False,
)
def sum_kept_declared_rounded(input, residual, weight=None, eps=1e-5):
    total = input.float() + residual.float()  # the bug: a block of a network rounds it here
    out = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps)
    out = out if weight is None else out * weight.float()
    return out.to(input.dtype), total.to(residual.dtype)
