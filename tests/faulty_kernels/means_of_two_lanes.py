"""Normalizes every other column with the neighbour of the saved mean: saved_statistics must catch it."""

import torch

from verifier import Domain, subject


@subject(
    op="layer_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    formula="canonical",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float32",),
    returns=("output", "mean", "rstd"),
    differentiable=False,
)
def means_of_two_lanes(input, weight=None, bias=None, eps=1e-5):
    mean = input.mean(-1, keepdim=True)
    rstd = 1 / torch.sqrt((input - mean).square().mean(-1, keepdim=True) + eps)
    other = torch.nextafter(mean, torch.full_like(mean, torch.inf))
    odd = torch.arange(input.shape[-1]) % 2 == 1
    y = (input - torch.where(odd, other, mean)) * rstd  # the bug
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return y, mean.flatten(), rstd.flatten()
