"""Raises eps to what float16 holds well where autocast casts to it: modes must catch it."""

import torch

from verifier import Domain, subject


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, eps):
        if torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.float16:
            eps = max(eps, torch.finfo(torch.float16).smallest_normal)  # the bug: nothing here is float16
        x = input.to(_wide(input))
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
        d = grad_output.to(_wide(input))
        hat = (input.to(_wide(input)) - mean) * rstd
        g = d if weight is None else d * weight
        c1, c2 = (hat * g).mean(-1, keepdim=True), g.mean(-1, keepdim=True)
        grad_input = ((g - (hat * c1 + c2)) * rstd).to(input.dtype)
        over_rows = [
            None if p is None else t.reshape(-1, input.shape[-1]).sum(0).to(p.dtype)
            for p, t in ((weight, d * hat), (bias, d))
        ]
        return grad_input, *over_rows, None


def _wide(tensor):
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


@subject(
    op="layer_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float32",),
)
def eps_raised_under_autocast_to_float16(input, weight=None, bias=None, eps=1e-5):
    return _LayerNorm.apply(input, weight, bias, eps)
