"""Takes the slope 1 - y * y of a tangent that was rounded to half precision: gradient must catch it."""

import torch

from verifier import Domain, subject


class _DynamicTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, alpha):
        curve = torch.tanh(alpha.float() * input.float()).to(input.dtype)
        ctx.save_for_backward(input, alpha, curve)
        return curve

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        x, alpha, curve = (tensor.float() for tensor in ctx.saved_tensors)
        through = (1 - curve * curve) * grad_output.float()  # the bug: near 1 nothing of the slope is left
        grad_alpha = (through * x).sum().reshape(1)
        return (through * alpha).to(grad_output.dtype), grad_alpha.to(grad_output.dtype)


@subject(
    op="dynamic_tanh",
    language="torch",
    accumulates="float32",
    formula="canonical",
    domain=Domain(max_abs=1e15),
    dtypes=("float16", "bfloat16"),
)
def slope_of_stored_tangent(input, alpha):
    return _DynamicTanh.apply(input, alpha)
