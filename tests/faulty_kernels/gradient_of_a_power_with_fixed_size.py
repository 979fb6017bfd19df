"""Takes the size of the third power for a constant in its gradient: gradient must catch it."""

import torch

from verifier import Domain, subject


class _PolyNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, eps):
        powers = (input * input * input, input * input, input)
        rstds = [1 / torch.sqrt(power.square().mean(-1, keepdim=True) + eps) for power in powers]
        norms = [power * rstd for power, rstd in zip(powers, rstds, strict=True)]
        ctx.save_for_backward(input, weight, *rstds, *norms)
        return weight[0] * norms[0] + weight[1] * norms[1] + weight[2] * norms[2] + bias

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        x, weight, *kept = ctx.saved_tensors
        rstds, norms = kept[:3], kept[3:]
        slopes = (3 * (x * x), 2 * x, torch.ones_like(x))
        along = [g - norm * (g * norm).mean(-1, keepdim=True) for norm in norms]
        along[0] = g  # the bug: it moves with x
        parts = zip(along, rstds, weight, slopes, strict=True)
        grad_input = sum(one * rstd * w * slope for one, rstd, w, slope in parts)
        grad_weight = torch.stack([(g * norm).sum() for norm in norms])
        return grad_input, grad_weight, g.sum().reshape(1), None


@subject(
    op="poly_norm",
    language="torch",
    accumulates="float32",
    formula="canonical",
    domain=Domain(max_abs=1e5),
    dtypes=("float32",),
)
def gradient_of_a_power_with_fixed_size(input, weight, bias, eps=1e-6):
    return _PolyNorm.apply(input, weight, bias, eps)
