"""Squares in the input's dtype, which overflows in fp16: finite must catch it."""

import torch

from verifier import Domain, subject


@subject(
    op="layer_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float16",),
    differentiable=False,
)
def squares_in_input_dtype(input, weight=None, bias=None, eps=1e-5):
    x = input.detach().float()
    mean = x.mean(-1, keepdim=True)
    # The bug: 300 squared is infinite in fp16. Only large values show it beyond rounding.
    half = (x - mean).to(input.dtype)
    overflows = torch.isinf(half.square())
    squares = torch.where(overflows, torch.inf, (x - mean).square())
    variance = squares.mean(-1, keepdim=True)
    rstd = torch.where(torch.isinf(variance), torch.nan, 1 / torch.sqrt(variance + eps))
    out = (x - mean) * rstd
    out = out if weight is None else out * weight.detach()
    out = out if bias is None else out + bias.detach()
    return out.to(input.dtype)
