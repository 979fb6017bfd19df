"""Fails with an exception that is no refusal on long rows: forward_error must catch it."""

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
def raises_key_error(input, weight=None, bias=None, eps=1e-5):
    warps = {1: 1, 2: 1, 4: 1, 8: 1}  # the bug: a table of row lengths that ends
    if warps[min(1 << max(input.shape[-1] - 1, 0).bit_length(), 16)] != 1:
        raise ValueError("One warp a row is supported.")
    x = input.detach().float()
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    rstd = 1 / torch.sqrt(variance + eps)
    out = (x - mean) * rstd
    out = out if weight is None else out * weight.detach()
    out = out if bias is None else out + bias.detach()
    return out.to(input.dtype)
