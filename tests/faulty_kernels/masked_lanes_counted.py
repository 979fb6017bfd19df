"""Counts the lanes beyond the row as (0 - mean)^2 in the variance: forward_error must catch it."""

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
def masked_lanes_counted(input, weight=None, bias=None, eps=1e-5):
    x = input.detach().float()
    mean = x.mean(-1, keepdim=True)
    # The bug: the block is the next power of two, and its padding is centred with the rest.
    columns = x.shape[-1]
    block = 1 << max(columns - 1, 0).bit_length()
    padded = torch.nn.functional.pad(x, (0, block - columns))
    variance = (padded - mean).square().sum(-1, keepdim=True) / max(columns, 1)
    rstd = 1 / torch.sqrt(variance + eps)
    out = (x - mean) * rstd
    out = out if weight is None else out * weight.detach()
    out = out if bias is None else out + bias.detach()
    return out.to(input.dtype)
