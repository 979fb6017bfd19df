"""Lets each row see the next column, which is yet to come: forward_error must catch it."""

import torch

from verifier import subject


@subject(
    op="causal_softmax",
    language="torch",
    variance="softmax",
    accumulates="float32",
    formula="rounded_scores_torch_cpu",
    dtypes=("float32",),
    fully_masked="nan",
    differentiable=False,
)
def causal_by_one_column_too_many(input, scale=1.0):
    there = torch.ones(input.shape[-2:], dtype=torch.bool).tril(1)  # the bug: tril(0)
    return torch.softmax((input * scale).masked_fill(~there, float("-inf")), -1)
