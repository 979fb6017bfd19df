"""Rounds a float32 weight to the input's dtype before it multiplies: forward_error must catch it."""

import torch

from verifier import Domain, subject


@subject(
    op="rms_norm",
    language="torch",
    variance="rms",
    accumulates="float32",
    domain=Domain(max_abs=1e15, parameter_dtypes=("input", "float32")),
    dtypes=("bfloat16",),
    differentiable=False,
)
def weight_rounded_to_input_dtype(input, weight=None, eps=1e-5):
    x = input.detach().float()
    out = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        out *= weight.detach().to(input.dtype)  # the bug
    return out.to(input.dtype)
