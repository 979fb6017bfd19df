"""Rounds the sum to the input's dtype where the residual is in float32: forward_error must catch it."""

import torch

from verifier import Domain, subject


@subject(
    op="add_rms_norm",
    language="torch",
    variance="rms",
    accumulates="float32",
    formula="canonical",
    domain=Domain(max_abs=1e15, residual_dtypes=("input", "float32")),
    dtypes=("bfloat16",),
    returns=("output", "new_residual"),
    differentiable=False,
)
def sum_in_dtype_of_input(input, residual, weight=None, eps=1e-5):
    rounded = (input.float() + residual.float()).to(input.dtype)  # the bug: the sum has the residual's dtype
    total = rounded.float()
    out = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps)
    out = out if weight is None else out * weight.float()
    return out.to(input.dtype), rounded.to(residual.dtype)
