"""Leaves the part along the row in the gradient of a row of length one: gradient must catch it."""

import torch

from verifier import Domain, subject


class _L2Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, eps):
        rstd = 1 / torch.sqrt(input.square().sum(-1, keepdim=True) + eps)
        ctx.save_for_backward(rstd)
        return input * rstd

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        (rstd,) = ctx.saved_tensors
        return grad_output * rstd, None  # the bug: the length moves with the input


@subject(
    op="l2_norm",
    language="torch",
    accumulates="float32",
    formula="canonical",
    domain=Domain(max_abs=1e15),
    dtypes=("float32",),
)
def gradient_along_the_row_kept(input, eps=1e-6):
    return _L2Norm.apply(input, eps)
