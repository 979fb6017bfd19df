"""Normalizes what is gated where the declaration says the other order: forward_error must catch it."""

import torch

from verifier import Domain, subject


@subject(
    op="rms_norm_silu_gate",
    language="torch",
    variance="rms",
    accumulates="float32",
    formula="autograd",
    domain=Domain(max_abs=1e15),
    dtypes=("float32",),
    differentiable=False,
)
def gate_before_the_norm(input, gate, weight=None, eps=1e-5):
    gated = input * (gate * torch.sigmoid(gate))  # the bug: Mamba's other order
    out = gated * torch.rsqrt(gated.square().mean(-1, keepdim=True) + eps)
    return out if weight is None else out * weight
