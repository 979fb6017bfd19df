"""Takes 1 - 2 / (exp(2 z) + 1) for tanh(z), and loses a small z: forward_error must catch it."""

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
)
def tangent_by_large_exponential(input, alpha, weight=None, bias=None):
    y = 1 - 2 / (torch.exp(2 * (alpha * input)) + 1)  # the bug
    y = y if weight is None else y * weight
    return y if bias is None else y + bias
