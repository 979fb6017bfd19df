"""Clamps infinities of grad_output to the largest number: special_values must catch it."""

import torch

from verifier import Domain, subject


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, eps):
        x = input.float()
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).square().mean(-1, keepdim=True)
        rstd = 1 / torch.sqrt(variance + eps)
        ctx.save_for_backward(input, weight, bias, mean, rstd)
        out = (x - mean) * rstd
        out = out if weight is None else out * weight
        return (out if bias is None else out + bias).to(input.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        input, weight, bias, mean, rstd = ctx.saved_tensors  # noqa: A001
        d = torch.nan_to_num(grad_output.float(), nan=float("nan"))  # the bug
        hat = (input.float() - mean) * rstd
        g = d if weight is None else d * weight
        c1, c2 = (hat * g).mean(-1, keepdim=True), g.mean(-1, keepdim=True)
        grad_input = ((g - (hat * c1 + c2)) * rstd).to(input.dtype)
        over_rows = [
            None if p is None else (t.sum(tuple(range(t.dim() - 1))) if t.dim() > 1 else t).to(p.dtype)
            for p, t in ((weight, d * hat), (bias, d))
        ]
        return grad_input, *over_rows, None


@subject(
    op="layer_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float32",),
    guarantees={"special_values"},
)
def infinity_of_gradient_clamped(input, weight=None, bias=None, eps=1e-5):
    return _LayerNorm.apply(input, weight, bias, eps)
