"""Sums the gradient of alpha * x where alpha's has a factor x as well: gradient must catch it."""

import torch

from verifier import Domain, subject


class _DynamicTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, alpha):
        ctx.save_for_backward(input, alpha)
        return torch.tanh(alpha * input)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        x, alpha = ctx.saved_tensors
        curve = torch.tanh(alpha * x)
        through = (1 - curve * curve) * grad_output
        return through * alpha, through.sum().reshape(1)  # the bug: (through * x).sum()


@subject(
    op="dynamic_tanh",
    language="torch",
    accumulates="float32",
    formula="canonical",
    domain=Domain(max_abs=1e15),
    dtypes=("float32",),
)
def gradient_of_alpha_without_input(input, alpha):
    return _DynamicTanh.apply(input, alpha)
