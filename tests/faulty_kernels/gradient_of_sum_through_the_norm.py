"""Takes the gradient of the returned sum through the norm as well: gradient must catch it."""

import torch

from verifier import Domain, subject


class _AddRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, residual, weight, eps):
        total = input + residual
        rstd = 1 / torch.sqrt(total.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(total, weight, rstd)
        out = total * rstd
        return out if weight is None else out * weight, total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output, grad_total):
        total, weight, rstd = ctx.saved_tensors
        hat = total * rstd
        g = grad_total + (grad_output if weight is None else grad_output * weight)  # the bug
        gradient = (g - hat * (hat * g).mean(-1, keepdim=True)) * rstd
        columns = total.shape[-1]
        grad_weight = (
            None
            if weight is None
            else (grad_output * hat).reshape(hat.numel() // max(columns, 1), columns).sum(0)
        )
        return gradient, gradient.clone(), grad_weight, None


@subject(
    op="add_rms_norm",
    language="torch",
    variance="rms",
    accumulates="float32",
    domain=Domain(max_abs=1e15),
    dtypes=("float32",),
    returns=("output", "new_residual"),
)
def gradient_of_sum_through_the_norm(input, residual, weight=None, eps=1e-5):
    return _AddRMSNorm.apply(input, residual, weight, eps)
