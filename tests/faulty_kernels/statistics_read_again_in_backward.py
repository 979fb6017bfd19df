"""Reads the running statistics anew in backward, whatever became of them: repeated_calls must catch it."""

import torch

from verifier import Domain, subject


class Evaluated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, running_mean, running_var, weight, bias, eps):  # noqa: PLR0917 (as it is called)
        ctx.save_for_backward(input, weight, bias)
        ctx.statistics = running_mean, running_var, eps  # the bug: torch is not told that they are kept
        y = (input - along(running_mean, input)) / torch.sqrt(along(running_var, input) + eps)
        y = y if weight is None else y * along(weight, input)
        return y if bias is None else y + along(bias, input)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        x, weight, bias = ctx.saved_tensors
        mean, variance, eps = ctx.statistics
        rstd = 1 / torch.sqrt(along(variance, x) + eps)
        axes = [axis for axis in range(x.dim()) if axis != 1]
        g = grad_output if weight is None else grad_output * along(weight, x)
        grad_weight = None if weight is None else (grad_output * (x - along(mean, x)) * rstd).sum(axes)
        return g * rstd, None, None, grad_weight, None if bias is None else grad_output.sum(axes), None


def along(values, x):
    return values.view(1, -1, *[1] * (x.dim() - 2))


@subject(
    op="batch_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    formula="autograd",
    dtypes=("float32",),
    domain=Domain(max_abs=1e15, max_kappa=1e3),
)
def statistics_read_again_in_backward(  # noqa: PLR0917 (an op's arguments)
    input, running_mean, running_var, weight=None, bias=None, eps=1e-5
):
    return Evaluated.apply(input, running_mean, running_var, weight, bias, eps)
