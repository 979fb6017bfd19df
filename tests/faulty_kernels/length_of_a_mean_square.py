"""Divides by the root of a mean of squares, which no length is: forward_error must catch it."""

import torch

from verifier import Domain, subject


@subject(
    op="l2_norm",
    language="torch",
    accumulates="float32",
    formula="autograd",
    domain=Domain(max_abs=1e15),
    dtypes=("float32",),
    differentiable=False,
)
def length_of_a_mean_square(input, eps=1e-6):
    return input / torch.sqrt(input.square().mean(-1, keepdim=True) + eps)  # the bug
