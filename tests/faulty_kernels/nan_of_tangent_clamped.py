"""Clamps the argument of tanh to [-20, 20], and NaN with it: special_values must catch it."""

import torch

from verifier import Domain, subject


@subject(
    op="dynamic_tanh",
    language="torch",
    accumulates="float32",
    formula="canonical",
    domain=Domain(max_abs=1e15),
    dtypes=("float32",),
    differentiable=False,
    guarantees=("special_values",),
)
def nan_of_tangent_clamped(input, alpha, weight=None, bias=None):
    near = torch.fmin(torch.fmax(alpha * input, torch.tensor(-20.0)), torch.tensor(20.0))  # the bug
    y = torch.tanh(near)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias
