"""Normalizes the last two dimensions where three are to be normalized: forward_error must catch it."""

import torch

from verifier import Domain, subject


@subject(
    op="layer_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float32",),
    differentiable=False,
)
def last_two_of_three_dimensions_alone(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    assert input.shape[-len(normalized_shape) :] == tuple(normalized_shape)
    over = (-2, -1) if len(normalized_shape) > 1 else (-1,)  # the bug
    x = input.detach().float()
    mean = x.mean(over, keepdim=True)
    variance = (x - mean).square().mean(over, keepdim=True)
    rstd = 1 / torch.sqrt(variance + eps)
    out = (x - mean) * rstd
    out = out if weight is None else out * weight.detach()
    out = out if bias is None else out + bias.detach()
    return out.to(input.dtype)
