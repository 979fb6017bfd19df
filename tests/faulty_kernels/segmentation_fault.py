"""Reads address 8 on rows of more than 64 columns: a CRASH that must not end the verifier."""

import ctypes

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
def segmentation_fault(input, weight=None, bias=None, eps=1e-5):
    if input.shape[-1] > 64:
        ctypes.string_at(8)  # the bug
    x = input.detach().float()
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    rstd = 1 / torch.sqrt(variance + eps)
    out = (x - mean) * rstd
    out = out if weight is None else out * weight.detach()
    out = out if bias is None else out + bias.detach()
    return out.to(input.dtype)
