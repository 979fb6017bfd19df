"""Normalizes the last dimension where several are to be: forward_error must catch it."""

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
def last_of_several_dimensions_alone(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    assert input.shape[-len(normalized_shape) :] == tuple(normalized_shape)
    x = input.detach().float()
    mean = x.mean(-1, keepdim=True)  # the bug
    variance = (x - mean).square().mean(-1, keepdim=True)
    rstd = 1 / torch.sqrt(variance + eps)
    out = (x - mean) * rstd
    out = out if weight is None else out * weight.detach()
    out = out if bias is None else out + bias.detach()
    return out.to(input.dtype)
