"""Adds one to the weight in bfloat16, where the declaration has it in fp32: forward_error must catch it."""

import torch

from verifier import Domain, subject


@subject(
    op="rms_norm_one_plus_weight",
    language="torch",
    variance="rms",
    accumulates="float32",
    formula="canonical",
    domain=Domain(max_abs=1e15),
    dtypes=("bfloat16",),
    differentiable=False,
)
def one_plus_weight_in_half(input, weight, eps=1e-6):
    x = input.float()
    out = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return (out * (1.0 + weight).float()).to(input.dtype)  # the bug: 1 + weight keeps 8 bits
