"""Multiplies by gate * sigmoid(gate) where the op has the sigmoid alone: forward_error must catch it."""

import torch

from verifier import Domain, subject


@subject(
    op="sigmoid_gate_rms_norm",
    language="torch",
    accumulates="float32",
    formula="autograd",
    domain=Domain(max_abs=1e15),
    dtypes=("float32",),
    differentiable=False,
)
def gate_times_its_sigmoid(input, gate, weight=None, eps=1e-5):
    u = input * (gate * torch.sigmoid(gate))  # the bug: torch.sigmoid(gate) alone
    out = u * torch.rsqrt(u.square().mean(-1, keepdim=True) + eps)
    return out if weight is None else out * weight
