"""Computes a gradient for the residual only if the input needs one: partial_gradients must catch it."""

import torch

from verifier import Domain, subject


class _AddLayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, residual, eps):
        total = input + residual
        deviation = total - total.mean(-1, keepdim=True)
        rstd = 1 / torch.sqrt(deviation.square().mean(-1, keepdim=True) + eps)
        hat = deviation * rstd
        ctx.save_for_backward(hat, rstd)
        return hat, total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output, grad_total):
        if not ctx.needs_input_grad[0]:  # the bug: the residual may need one all the same
            return None, None, None
        hat, rstd = ctx.saved_tensors
        along_hat = (hat * grad_output).mean(-1, keepdim=True)
        through = hat * along_hat + grad_output.mean(-1, keepdim=True)
        gradient = (grad_output - through) * rstd + grad_total
        return gradient, gradient.clone(), None


@subject(
    op="add_layer_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float32",),
    returns=("output", "new_residual"),
)
def gradient_of_residual_only_with_input(input, residual, eps=1e-5):
    return _AddLayerNorm.apply(input, residual, eps)
