"""Raises an eps below 1e-6 in the kernel of long rows alone: forward_error must catch it."""

import torch
import triton
import triton.language as tl

from verifier import subject, tile, tree

BLOCK = 4096


@triton.jit
def _short(x, y, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    mean_square = tl.div_rn(tl.sum(value * value, axis=0), tl.cast(columns, tl.float32))
    tl.store(y + row * columns + column, value * tl.div_rn(1.0, tl.sqrt_rn(mean_square + eps)), mask=inside)


@triton.jit
def _long(x, y, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * columns + column, mask=column < columns, other=0.0).to(tl.float32)
        squares += value * value
    mean_square = tl.div_rn(tl.sum(squares, axis=0), tl.cast(columns, tl.float32))
    rstd = tl.div_rn(1.0, tl.sqrt_rn(mean_square + tl.maximum(eps, 1e-6)))  # the bug
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * columns + column, mask=column < columns, other=0.0).to(tl.float32)
        tl.store(y + row * columns + column, value * rstd, mask=column < columns)


def _depth(columns):
    block = min(1 << max(columns - 1, 0).bit_length(), BLOCK)
    return tile(block=block, threads=128, element_bytes=4).depth(columns)


@subject(
    op="rms_norm",
    language="triton",
    variance="rms",
    accumulates="float32",
    dtypes=("float32",),
    trees=tree(depth=_depth),
    differentiable=False,
)
def eps_raised_in_long_rows_triton(input, eps=1e-5):
    x = input.detach().contiguous()
    y, columns = torch.empty_like(x), x.shape[-1]
    if x.numel():
        kernel, block = (_short, triton.next_power_of_2(columns)) if columns <= BLOCK else (_long, BLOCK)
        kernel[(x.numel() // columns,)](x, y, columns, float(eps), BLOCK=block)
    return y
