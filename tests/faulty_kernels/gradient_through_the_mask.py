"""Computes the outputs again for the gradient, and forgets the mask there: gradient must catch it."""

import torch

from verifier import subject


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, mask):
        scores = input if mask is None else input.masked_fill(~mask, float("-inf"))
        top = scores.amax(-1, keepdim=True)
        top = torch.where(torch.isneginf(top), 0.0, top)
        powers = torch.exp(scores - top)
        total = powers.sum(-1, keepdim=True)
        total = torch.where(total == 0, 1.0, total)
        ctx.save_for_backward(input, top, total)
        return powers / total

    @staticmethod
    def backward(ctx, grad_output):
        x, top, total = ctx.saved_tensors
        y = torch.exp(x - top) / total  # the bug: also where the mask is False
        return y * (grad_output - (grad_output * y).sum(-1, keepdim=True)), None


@subject(
    op="masked_softmax",
    language="torch",
    variance="softmax",
    accumulates="float32",
    formula="recomputed",
    dtypes=("float32",),
    fully_masked="zeros",
)
def gradient_through_the_mask(input, mask=None):
    return _Softmax.apply(input, mask)
