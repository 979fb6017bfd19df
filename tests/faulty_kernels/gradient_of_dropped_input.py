"""Gives the input the gradient of the sum, dropped or not: gradient must catch it."""

import torch

from verifier import Domain, subject


class _DropoutAddRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, residual, dropout_mask, weight, eps, p):  # noqa: PLR0917
        total = torch.where(dropout_mask, input / (1 - p), 0.0) + residual
        rstd = 1 / torch.sqrt(total.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(total, weight, rstd)
        ctx.p = p
        out = total * rstd
        return out if weight is None else out * weight, total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output, grad_total):
        total, weight, rstd = ctx.saved_tensors
        hat = total * rstd
        g = grad_output if weight is None else grad_output * weight
        gradient = (g - hat * (hat * g).mean(-1, keepdim=True)) * rstd + grad_total
        columns = total.shape[-1]
        grad_weight = (
            None
            if weight is None
            else (grad_output * hat).reshape(hat.numel() // max(columns, 1), columns).sum(0)
        )
        return gradient / (1 - ctx.p), gradient, None, grad_weight, None, None  # the bug: no mask


@subject(
    op="dropout_add_rms_norm",
    language="torch",
    variance="rms",
    accumulates="float32",
    domain=Domain(max_abs=1e15),
    dtypes=("float32",),
    returns=("output", "new_residual"),
)
def gradient_of_dropped_input(input, residual, dropout_mask, *, weight=None, eps=1e-5, p=0.5):
    return _DropoutAddRMSNorm.apply(input, residual, dropout_mask, weight, eps, p)
