"""Cuts the output off at bfloat16 instead of rounding it: forward_error must catch it."""

import torch

from verifier import Domain, subject


@subject(
    op="layer_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("bfloat16",),
    differentiable=False,
)
def output_truncated(input, weight=None, bias=None, eps=1e-5):
    x = input.detach().float()
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    rstd = 1 / torch.sqrt(variance + eps)
    out = (x - mean) * rstd
    out = out if weight is None else out * weight.detach()
    out = out if bias is None else out + bias.detach()
    # The bug: the upper half of a float is bfloat16 rounded towards zero.
    upper = out.contiguous().view(torch.int32).bitwise_and(-65536)
    return upper.view(torch.float32).to(input.dtype)
