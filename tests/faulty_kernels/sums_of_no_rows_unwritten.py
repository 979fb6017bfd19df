"""Leaves the gradient of weight as allocated where there are no rows: gradient must catch it."""

import torch

from verifier import Domain, subject


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        mean = x.mean(-1, keepdim=True)
        rstd = 1 / torch.sqrt((x - mean).square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward((x - mean) * rstd, rstd, weight)
        return (x - mean) * rstd * weight

    @staticmethod
    def backward(ctx, grad_output):
        hat, rstd, weight = ctx.saved_tensors
        g = grad_output * weight
        along = (g * hat).mean(-1, keepdim=True)
        grad_weight = torch.full_like(weight, float("nan"))  # stands for memory that nobody wrote
        if hat.numel():  # the bug: the sum over no rows is 0
            grad_weight.copy_((grad_output * hat).reshape(-1, weight.numel()).sum(0))
        return (g - g.mean(-1, keepdim=True) - hat * along) * rstd, grad_weight, None


@subject(
    op="layer_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float32",),
)
def sums_of_no_rows_unwritten(input, weight, eps=1e-5):
    return _Norm.apply(input, weight, eps)
