"""Gives a head the mask of the sample whose number is the head's: forward_error must catch it."""

import torch

from verifier import subject


@subject(
    op="masked_softmax",
    language="torch",
    variance="softmax",
    accumulates="float32",
    dtypes=("float32",),
    differentiable=False,
    fully_masked="zeros",
)
def mask_of_sample_by_head(input, mask=None, attn_bias=None, scale=1.0):
    scores = input.detach().float() * scale
    if attn_bias is not None:
        scores = scores + attn_bias.detach().float()
    if mask is not None:
        mask = mask.expand(input.shape)
        if input.dim() == 4 and input.numel():
            batch, heads = input.shape[:2]
            rows = mask[:, 0]
            # The bug: `repeat_interleave`; the two agree for one sample, and for one head.
            mask = rows.repeat(heads, 1, 1).reshape(batch, heads, *rows.shape[1:])
        scores = scores.masked_fill(~mask, float("-inf"))
    top = scores.amax(-1, keepdim=True) if scores.shape[-1] else scores
    powers = torch.exp(scores - torch.where(top.isinf(), torch.zeros_like(top), top))
    total = powers.sum(-1, keepdim=True)
    return (powers / torch.where(total == 0, torch.ones_like(total), total)).to(input.dtype)
