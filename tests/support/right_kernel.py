"""A layer norm in float64-wide torch operators that keeps every promise: no check may complain of it."""

import torch

from verifier import Domain, subject, tree


def _sum(x):
    """Add columns in order, row by row alike: torch's own sums depend on the number of rows."""
    total = torch.zeros_like(x[..., :1])
    for column in range(x.shape[-1]):
        total = total + x[..., column : column + 1]
    return total


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, eps):
        wide = torch.float64 if input.dtype == torch.float64 else torch.float32
        x = input.to(wide)
        columns = max(x.shape[-1], 1)
        mean = _sum(x) / columns
        rstd = 1 / torch.sqrt(_sum((x - mean).square()) / columns + eps)
        ctx.save_for_backward(input, weight, bias, mean, rstd)
        out = (x - mean) * rstd
        out = out if weight is None else out * weight
        out = (out if bias is None else out + bias).to(input.dtype)
        flat = mean.reshape(-1).clone(), rstd.reshape(-1).clone()
        ctx.mark_non_differentiable(*flat)
        return (out, *flat)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output, _grad_mean, _grad_rstd):
        input, weight, bias, mean, rstd = ctx.saved_tensors  # noqa: A001
        wide = mean.dtype
        d, hat = grad_output.to(wide), (input.to(wide) - mean) * rstd
        g = d if weight is None else d * weight
        columns = max(input.shape[-1], 1)
        c1, c2 = _sum(hat * g) / columns, _sum(g) / columns
        grad_input = ((g - (hat * c1 + c2)) * rstd).to(input.dtype)
        over_rows = [
            None if p is None else t.reshape(-1, input.shape[-1]).sum(0).to(p.dtype)
            for p, t in ((weight, d * hat), (bias, d))
        ]
        return grad_input, *over_rows, None


@subject(
    op="layer_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    dtypes=("float32", "float64", "float16"),
    trees=tree(depth=lambda columns: max(columns, 1)),
    domain=Domain(max_abs=1e15, max_kappa=1e3, min_columns=1),
    returns=("output", "mean", "rstd"),
    guarantees={"determinism", "batch_invariance", "gradgradcheck", "special_values", "large_offsets"},
)
def right_kernel(input, weight=None, bias=None, eps=1e-5):
    return _LayerNorm.apply(input, weight, bias, eps)
