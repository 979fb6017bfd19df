"""Takes grad_output for one number where it is one along each row: layouts must catch it."""

import torch

from verifier import Domain, subject


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, eps):
        rstd = 1 / torch.sqrt(input.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(input, rstd)
        return input * rstd

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        input, rstd = ctx.saved_tensors  # noqa: A001
        g = grad_output
        if g.numel() and g.stride(-1) == 0:
            g = g.flatten()[0].expand(g.shape)  # the bug: each row has a number of its own
        hat = input * rstd
        return (g - hat * (hat * g).mean(-1, keepdim=True)) * rstd, None


@subject(
    op="rms_norm",
    language="torch",
    variance="rms",
    accumulates="float32",
    domain=Domain(max_abs=1e15),
    dtypes=("float32",),
)
def gradient_along_row_taken_for_one_number(input, eps=1e-5):
    return _RMSNorm.apply(input, eps)
