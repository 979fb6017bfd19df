"""Masks with the least number: a fully masked row is uniform, not zeros: forward_error must catch it."""

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
    differentiable=False,
)
def masked_with_the_least_number(input, mask=None, attn_bias=None, scale=1.0):
    scores = input * scale if attn_bias is None else input * scale + attn_bias
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)  # the bug: -infinity is meant
    out = torch.softmax(scores, -1)
    return torch.where(torch.isneginf(scores).all(-1, keepdim=True), 0.0, out)
