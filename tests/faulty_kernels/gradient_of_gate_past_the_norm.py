"""Takes the gate's gradient past the norm that follows it: gradient must catch it."""

import torch

from verifier import Domain, subject


class _GatedRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, gate, eps):
        u = input * (gate * torch.sigmoid(gate))
        rstd = 1 / torch.sqrt(u.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(input, gate, u, rstd)
        return u * rstd

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        x, gate, u, rstd = ctx.saved_tensors
        sigmoid, hat = torch.sigmoid(gate), u * rstd
        du = (grad_output - hat * (hat * grad_output).mean(-1, keepdim=True)) * rstd
        slope = sigmoid + gate * sigmoid * (1 - sigmoid)
        return du * (gate * sigmoid), grad_output * rstd * x * slope, None  # the bug: du * x * slope


@subject(
    op="silu_gate_rms_norm",
    language="torch",
    accumulates="float32",
    formula="canonical",
    domain=Domain(max_abs=1e15),
    dtypes=("float32",),
)
def gradient_of_gate_past_the_norm(input, gate, eps=1e-5):
    return _GatedRMSNorm.apply(input, gate, eps)
