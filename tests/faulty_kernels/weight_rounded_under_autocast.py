"""Rounds a weight of float32 to the input's dtype under autocast: modes must catch it."""

import torch

from verifier import Domain, subject


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, eps):
        parameters = [None if p is None else p.dtype for p in (weight, bias)]
        if torch.is_autocast_enabled("cuda") and weight is not None:
            weight = weight.to(input.dtype)  # the bug: nothing here is slower in float32
        x = input.to(_wide(input))
        mean = x.mean(-1, keepdim=True)
        rstd = 1 / torch.sqrt((x - mean).square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(input, weight, mean, rstd)
        ctx.parameters = parameters
        out = (x - mean) * rstd
        out = out if weight is None else out * weight
        return (out if bias is None else out + bias).to(input.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        input, weight, mean, rstd = ctx.saved_tensors  # noqa: A001
        d = grad_output.to(_wide(input))
        hat = (input.to(_wide(input)) - mean) * rstd
        g = d if weight is None else d * weight
        c1, c2 = (hat * g).mean(-1, keepdim=True), g.mean(-1, keepdim=True)
        grad_input = ((g - (hat * c1 + c2)) * rstd).to(input.dtype)
        over_rows = [
            None if dtype is None else t.reshape(-1, input.shape[-1]).sum(0).to(dtype)
            for dtype, t in zip(ctx.parameters, (d * hat, d), strict=True)
        ]
        return grad_input, *over_rows, None


def _wide(tensor):
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


@subject(
    op="layer_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3, parameter_dtypes=("input", "float32")),
    dtypes=("bfloat16",),
)
def weight_rounded_under_autocast(input, weight=None, bias=None, eps=1e-5):
    return _LayerNorm.apply(input, weight, bias, eps)
