"""Multiplies the scores with the scale and leaves their gradient as it is: gradient must catch it."""

import torch

from verifier import subject


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, scale):
        there = torch.ones(input.shape[-2:], dtype=torch.bool).tril()
        y = torch.softmax((input * scale).masked_fill(~there, float("-inf")), -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return y * (grad_output - (grad_output * y).sum(-1, keepdim=True)), None  # the bug: times the scale


@subject(
    op="causal_softmax",
    language="torch",
    variance="softmax",
    accumulates="float32",
    formula="rounded_scores_torch_cpu",
    dtypes=("float32",),
    fully_masked="nan",
)
def gradient_without_scale(input, scale=1.0):
    return _Softmax.apply(input, scale)
