"""Takes away the mean of the input where that of the gated input is to be: forward_error must catch it."""

import torch

from verifier import Domain, subject


@subject(
    op="silu_gate_layer_norm",
    language="torch",
    accumulates="float32",
    formula="canonical",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float32",),
    differentiable=False,
)
def mean_of_input_past_the_gate(input, gate, eps=1e-5):
    u = input * (gate * torch.sigmoid(gate))
    deviation = u - input.mean(-1, keepdim=True)  # the bug: u.mean
    return deviation / torch.sqrt(deviation.square().mean(-1, keepdim=True) + eps)
