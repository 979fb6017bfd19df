"""Multiplies what is added to the scores with the scale, too: forward_error must catch it."""

import torch

from verifier import subject


@subject(
    op="masked_softmax",
    language="torch",
    variance="softmax",
    accumulates="float32",
    formula="rounded_scores_torch_cpu",
    dtypes=("float32",),
    fully_masked="nan",
    differentiable=False,
)
def scale_after_the_mask(input, attn_bias, scale=1.0):
    return torch.softmax((input + attn_bias) * scale, -1)  # the bug: input * scale + attn_bias
