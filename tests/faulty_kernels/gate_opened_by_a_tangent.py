"""Makes a sigmoid of a tangent, which loses its digits far from 0: forward_error must catch it."""

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
def gate_opened_by_a_tangent(input, gate, weight=None, eps=1e-5):
    out = input * torch.rsqrt(input.square().mean(-1, keepdim=True) + eps)
    out = out if weight is None else out * weight
    return out * gate * (0.5 + 0.5 * torch.tanh(0.5 * gate))  # the bug: at -8 that is 495 units off
