"""Takes a NaN in the gate for a gate that is shut: special_values must catch it."""

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
    guarantees={"special_values"},
)
def nan_of_gate_becomes_zero(input, gate, weight=None, eps=1e-5):
    x, held = input.detach(), gate.detach()
    out = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    out = out if weight is None else out * weight.detach()
    opened = held * torch.sigmoid(held)
    return out * torch.where(opened.isnan(), 0.0, opened)  # the bug
