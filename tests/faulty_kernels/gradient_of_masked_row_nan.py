"""Puts zeros in the place of NaN in fully masked rows, whose gradient stays NaN: gradient must catch it."""

import torch

from verifier import subject


@subject(
    op="masked_softmax",
    language="torch",
    variance="softmax",
    accumulates="float32",
    formula="rounded_scores_torch_cpu",
    dtypes=("float32",),
    fully_masked="zeros",
)
def gradient_of_masked_row_nan(input, attn_bias, scale=1.0):
    scores = input * scale + attn_bias
    out = torch.softmax(scores, -1)
    # The bug: what comes to NaN is 0, and 0 * NaN is NaN on its way back through softmax.
    return torch.where(torch.isneginf(scores).all(-1, keepdim=True), 0.0, out)
