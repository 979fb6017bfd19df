"""Takes the strides of the mask for what is added to the scores: forward_error must catch it."""

import torch

from verifier import subject


@subject(
    op="masked_softmax",
    language="torch",
    variance="softmax",
    accumulates="float32",
    formula="torch_cpu",
    dtypes=("float32",),
    fully_masked="nan",
    differentiable=False,
)
def added_scores_laid_out_as_mask(input, mask=None, attn_bias=None, scale=1.0):
    scores = input.detach() * scale
    if attn_bias is not None:
        added = attn_bias.detach().contiguous()
        like = added if mask is None else mask.contiguous()  # the bug: they need not be broadcast alike
        scores = scores + torch.as_strided(added, scores.shape, like.expand(scores.shape).stride())
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return torch.softmax(scores, -1)
