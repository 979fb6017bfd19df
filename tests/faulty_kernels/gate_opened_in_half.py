"""Computes the sigmoid of its gate in bfloat16, though declared in fp32: forward_error must catch it."""

import torch

from verifier import Domain, subject


@subject(
    op="rms_norm_sigmoid_gate",
    language="torch",
    variance="rms",
    accumulates="float32",
    formula="canonical",
    domain=Domain(max_abs=1e15),
    dtypes=("bfloat16",),
    differentiable=False,
)
def gate_opened_in_half(input, gate, weight=None, eps=1e-5):
    x = input.float()
    out = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    out = out if weight is None else out * weight.float()
    return (out * torch.sigmoid(gate)).to(input.dtype)  # the bug: torch rounds the sigmoid to 8 bits
