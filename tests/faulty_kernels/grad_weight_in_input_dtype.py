"""Stores grad_weight in the input's dtype on its way to a float32 weight: gradient must catch it."""

import torch

from verifier import Domain, subject


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, eps):
        x = input.float()
        mean = x.mean(-1, keepdim=True)
        rstd = 1 / torch.sqrt((x - mean).square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(input, weight, bias, mean, rstd)
        out = (x - mean) * rstd
        out = out if weight is None else out * weight
        return (out if bias is None else out + bias).to(input.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        input, weight, bias, mean, rstd = ctx.saved_tensors  # noqa: A001
        d, hat = grad_output.float(), (input.float() - mean) * rstd
        g = d if weight is None else d * weight
        c1, c2 = (hat * g).mean(-1, keepdim=True), g.mean(-1, keepdim=True)
        grad_input = ((g - (hat * c1 + c2)) * rstd).to(input.dtype)
        columns = input.shape[-1]
        # The bug: autograd casts these to float32, and nobody sees that their digits are gone.
        grad_weight, grad_bias = (
            None if parameter is None else terms.reshape(-1, columns).sum(0).to(input.dtype)
            for parameter, terms in ((weight, d * hat), (bias, d))
        )
        return grad_input, grad_weight, grad_bias, None


@subject(
    op="layer_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3, min_columns=1, parameter_dtypes=("input", "float32")),
    dtypes=("bfloat16",),
)
def grad_weight_in_input_dtype(input, weight=None, bias=None, eps=1e-5):
    return _LayerNorm.apply(input, weight, bias, eps)
