"""Rounds the gradient that comes to a sum in float32 to the input's dtype: gradient must catch it."""

import torch

from verifier import Domain, subject


class _AddRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, residual, weight, eps):
        kept = (input.float() + residual.float()).to(residual.dtype)
        total = kept.float()
        rstd = 1 / torch.sqrt(total.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(total, weight, rstd)
        ctx.dtypes = input.dtype, residual.dtype
        out = total * rstd
        out = out if weight is None else out * weight.float()
        return out.to(input.dtype), kept

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output, grad_total):
        total, weight, rstd = ctx.saved_tensors
        grad_output, hat = grad_output.float(), total * rstd
        g = grad_output if weight is None else grad_output * weight.float()
        gradient = (g - hat * (hat * g).mean(-1, keepdim=True)) * rstd
        gradient = gradient + grad_total.to(ctx.dtypes[0]).float()  # the bug
        columns = total.shape[-1]
        grad_weight = (
            None
            if weight is None
            else (grad_output * hat).reshape(hat.numel() // max(columns, 1), columns).sum(0).to(weight.dtype)
        )
        return gradient.to(ctx.dtypes[0]), gradient.to(ctx.dtypes[1]), grad_weight, None


@subject(
    op="add_rms_norm",
    language="torch",
    variance="rms",
    accumulates="float32",
    domain=Domain(max_abs=1e15, residual_dtypes=("input", "float32")),
    dtypes=("bfloat16",),
    returns=("output", "new_residual"),
)
def gradient_of_sum_in_dtype_of_input(input, residual, weight=None, eps=1e-5):
    return _AddRMSNorm.apply(input, residual, weight, eps)
