"""Softmax of masked scores in torch operators, as models write it: a control, not a reference.

Each operator rounds to the input's dtype. A row of which no element takes part is NaN.
"""

import torch

from verifier import subject

DECLARED = {
    "language": "torch",
    "variance": "softmax",
    "accumulates": "float32",
    "dtypes": ("float16", "bfloat16", "float32", "float64"),
    "formula": "rounded_scores_torch_cpu",
    "guarantees": {"layouts", "large_offsets"},
    "fully_masked": "nan",
}


def scores(input, mask, attn_bias, scale):
    """The scores; -infinity where mask is False."""
    found = input * scale
    found = found if attn_bias is None else found + attn_bias
    return found if mask is None else found.masked_fill(~mask, float("-inf"))


def below(input, mask, diagonal):
    """The mask, where it is on or below a diagonal."""
    there = torch.ones(input.shape[-2:], dtype=torch.bool, device=input.device).tril(diagonal)
    return there if mask is None else there & mask


@subject(op="masked_softmax", **DECLARED)
def masked_softmax_torch(input, mask=None, attn_bias=None, scale=1.0):
    return torch.nn.functional.softmax(scores(input, mask, attn_bias, scale), -1)
