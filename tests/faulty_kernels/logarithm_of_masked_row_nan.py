"""Gives NaN as the logarithm of a fully masked row, though -inf is declared: forward_error must catch it."""

import torch

from verifier import subject


@subject(
    op="masked_log_softmax",
    language="torch",
    variance="softmax",
    accumulates="float32",
    formula="rounded_scores_torch_cpu",
    dtypes=("float32",),
    fully_masked="zeros",
    differentiable=False,
)
def logarithm_of_masked_row_nan(input, mask=None, scale=1.0):
    scores = input * scale
    scores = scores if mask is None else scores.masked_fill(~mask, float("-inf"))
    return torch.log_softmax(scores, -1)  # the bug: NaN where nothing takes part
