"""Masks after the largest element was subtracted, be it masked or not: forward_error must catch it."""

import torch

from verifier import subject


@subject(
    op="masked_softmax",
    language="torch",
    variance="softmax",
    accumulates="float32",
    dtypes=("float32",),
    fully_masked="zeros",
    differentiable=False,
)
def mask_after_the_maximum(input, mask=None, scale=1.0):
    scores = input * scale
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    if mask is not None:
        powers = powers * mask  # the bug: beside a large masked score all that is left underflows
    total = powers.sum(-1, keepdim=True)
    return powers / torch.where(total > 0, total, 1.0)
