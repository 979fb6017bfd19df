"""Computes gradients that autograd takes for constants: gradgradcheck must catch it."""

import torch

from verifier import Domain, subject


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, eps):
        x = input.to(_wide(input))
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).square().mean(-1, keepdim=True)
        rstd = 1 / torch.sqrt(variance + eps)
        ctx.save_for_backward(input, weight, bias, mean, rstd)
        out = (x - mean) * rstd
        out = out if weight is None else out * weight
        out = out if bias is None else out + bias
        return out.to(input.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        # The bug: as from a kernel that is launched, no gradient of these; once_differentiable would say so.
        input, weight, bias, mean, rstd = (t if t is None else t.detach() for t in ctx.saved_tensors)  # noqa: A001
        grad_output = grad_output.detach()
        d = grad_output.to(_wide(input))
        hat = (input.to(_wide(input)) - mean) * rstd
        g = d if weight is None else d * weight
        c1, c2 = (hat * g).mean(-1, keepdim=True), g.mean(-1, keepdim=True)
        grad_input = ((g - (hat * c1 + c2)) * rstd).to(input.dtype)
        columns = input.shape[-1]
        grad_weight = (
            None
            if weight is None
            else (d * hat).reshape(d.numel() // max(columns, 1), columns).sum(0).to(weight.dtype)
        )
        grad_bias = (
            None if bias is None else d.reshape(d.numel() // max(columns, 1), columns).sum(0).to(bias.dtype)
        )
        return grad_input, grad_weight, grad_bias, None


def _wide(tensor):
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


@subject(
    op="layer_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float64",),
    guarantees={"gradgradcheck"},
)
def second_derivative_missing(input, weight=None, bias=None, eps=1e-5):
    return _LayerNorm.apply(input, weight, bias, eps)
