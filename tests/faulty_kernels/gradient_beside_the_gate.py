"""Sends the gradient through the norm without what the gate multiplied it by: gradient must catch it."""

import torch

from verifier import Domain, subject


class _GatedLayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, gate, eps):
        deviation = input - input.mean(-1, keepdim=True)
        rstd = 1 / torch.sqrt(deviation.square().mean(-1, keepdim=True) + eps)
        hat = deviation * rstd
        ctx.save_for_backward(hat, gate, rstd)
        return hat * torch.sigmoid(gate)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        hat, gate, rstd = ctx.saved_tensors
        sigmoid, g = torch.sigmoid(gate), grad_output  # the bug: g comes through the gate
        c1, c2 = (hat * g).mean(-1, keepdim=True), g.mean(-1, keepdim=True)
        return (g - hat * c1 - c2) * rstd, grad_output * hat * sigmoid * (1 - sigmoid), None


@subject(
    op="layer_norm_sigmoid_gate",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float32",),
)
def gradient_beside_the_gate(input, gate, eps=1e-5):
    return _GatedLayerNorm.apply(input, gate, eps)
