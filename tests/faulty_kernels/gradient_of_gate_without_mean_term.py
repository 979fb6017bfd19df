"""Takes the gate's gradient from one that lacks what the mean takes back: gradient must catch it."""

import torch

from verifier import Domain, subject


class _GatedLayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, gate, eps):
        sigmoid = torch.sigmoid(gate)
        u = input * sigmoid
        deviation = u - u.mean(-1, keepdim=True)
        rstd = 1 / torch.sqrt(deviation.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(input, sigmoid, deviation * rstd, rstd)
        return deviation * rstd

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        x, sigmoid, hat, rstd = ctx.saved_tensors
        along = grad_output - hat * (hat * grad_output).mean(-1, keepdim=True)
        du = (along - grad_output.mean(-1, keepdim=True)) * rstd
        return du * sigmoid, along * rstd * x * (sigmoid * (1 - sigmoid)), None  # the bug: du * x * slope


@subject(
    op="sigmoid_gate_layer_norm",
    language="torch",
    accumulates="float32",
    formula="canonical",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float32",),
)
def gradient_of_gate_without_mean_term(input, gate, eps=1e-5):
    return _GatedLayerNorm.apply(input, gate, eps)
