"""Computes the norm again for the gate's gradient and forgets the bias there: gradient must catch it."""

import torch

from verifier import Domain, subject


class _GatedLayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, gate, bias, eps):
        deviation = input - input.mean(-1, keepdim=True)
        rstd = 1 / torch.sqrt(deviation.square().mean(-1, keepdim=True) + eps)
        hat = deviation * rstd
        ctx.save_for_backward(hat, gate, rstd)
        out = hat if bias is None else hat + bias
        return out * (gate * torch.sigmoid(gate))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        hat, gate, rstd = ctx.saved_tensors
        sigmoid, columns = torch.sigmoid(gate), hat.shape[-1]
        g = grad_output * (gate * sigmoid)
        through = hat * (hat * g).mean(-1, keepdim=True) + g.mean(-1, keepdim=True)
        slope = sigmoid * (1 + gate * (1 - sigmoid))
        grad_gate = grad_output * hat * slope  # the bug: hat + bias, which layers begin with as zeros
        grad_bias = None
        if ctx.needs_input_grad[2]:
            grad_bias = g.reshape(g.numel() // max(columns, 1), columns).sum(0)
        return (g - through) * rstd, grad_gate, grad_bias, None


@subject(
    op="layer_norm_silu_gate",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float32",),
)
def gate_gradient_without_bias(input, gate, bias=None, eps=1e-5):
    return _GatedLayerNorm.apply(input, gate, bias, eps)
