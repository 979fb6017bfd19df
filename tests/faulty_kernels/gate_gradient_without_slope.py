"""Gives the gate of a norm the gradient of a linear one, gate * sigmoid: gradient must catch it."""

import torch

from verifier import Domain, subject


class _GatedRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, gate, eps):
        rstd = 1 / torch.sqrt(input.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(input, gate, rstd)
        return input * rstd * (gate * torch.sigmoid(gate))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        x, gate, rstd = ctx.saved_tensors
        hat, sigmoid = x * rstd, torch.sigmoid(gate)
        g = grad_output * (gate * sigmoid)
        grad_input = (g - hat * (hat * g).mean(-1, keepdim=True)) * rstd
        return grad_input, grad_output * hat * sigmoid, None  # the bug: sigmoid has a slope of its own


@subject(
    op="rms_norm_silu_gate",
    language="torch",
    variance="rms",
    accumulates="float32",
    domain=Domain(max_abs=1e15),
    dtypes=("float32",),
)
def gate_gradient_without_slope(input, gate, eps=1e-5):
    return _GatedRMSNorm.apply(input, gate, eps)
