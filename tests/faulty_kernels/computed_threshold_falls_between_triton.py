"""Drops elements that equal a threshold that no literal says: forward_error must catch it."""

import math

import torch
import triton
import triton.language as tl

from verifier import subject, tree

LARGE = tl.constexpr(math.log(6) ** 4)  # 10.3


@triton.jit
def _forward(x, y, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    small, large = tl.where(value < LARGE, value, 0.0), tl.where(value > LARGE, value, 0.0)
    value = small + large  # the bug: what equals the threshold is neither
    mean_square = tl.div_rn(tl.sum(value * value, axis=0), tl.cast(columns, tl.float32))
    rstd = tl.div_rn(1.0, tl.sqrt_rn(mean_square + eps))
    tl.store(y + row * columns + column, value * rstd, mask=inside)


@subject(
    op="rms_norm",
    language="triton",
    variance="rms",
    accumulates="float32",
    dtypes=("float32",),
    trees=tree(depth=lambda columns: max(columns, 1)),
    differentiable=False,
)
def computed_threshold_falls_between_triton(input, eps=1e-5):
    x = input.detach().contiguous()
    y, columns = torch.empty_like(x), x.shape[-1]
    if x.numel():
        _forward[(x.numel() // columns,)](x, y, columns, eps, BLOCK=triton.next_power_of_2(columns))
    return y
