"""Gives no gradients where the normalized output is not used: partial_gradients must catch it."""

import torch

from verifier import Domain, subject


class _AddRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, residual, weight, eps):
        total = input + residual
        rstd = 1 / torch.sqrt(total.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(total, weight, rstd)
        ctx.set_materialize_grads(False)
        out = total * rstd
        return out if weight is None else out * weight, total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output, grad_total):
        if grad_output is None:  # the bug: the sum may be used all the same
            return None, None, None, None
        total, weight, rstd = ctx.saved_tensors
        hat = total * rstd
        g = grad_output if weight is None else grad_output * weight
        gradient = (g - hat * (hat * g).mean(-1, keepdim=True)) * rstd
        if grad_total is not None:
            gradient = gradient + grad_total
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
def gradients_of_unused_output_taken_for_none(input, residual, weight=None, eps=1e-5):
    return _AddRMSNorm.apply(input, residual, weight, eps)
