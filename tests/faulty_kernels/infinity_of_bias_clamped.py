"""Clamps an infinite bias to the largest number: special_values must catch it."""

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
    guarantees={"special_values"},
)
def infinity_of_bias_clamped(input, bias=None, eps=1e-5):
    x = input.detach().float()
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    rstd = 1 / torch.sqrt(variance + eps)
    out = (x - mean) * rstd
    out = out if bias is None else out + torch.nan_to_num(bias.detach(), nan=float("nan"))  # the bug
    return out.to(input.dtype)
