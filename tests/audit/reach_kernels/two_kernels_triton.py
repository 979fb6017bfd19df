"""An RMS norm of two kernels, of which only one runs below 2^24 columns."""

import torch
import triton
import triton.language as tl

from verifier import subject, tree

DTYPES = (torch.float32,)


def depth(columns):
    return max(columns, 1)


@triton.jit
def scaled(value, mean_square, eps):
    return value * tl.div_rn(1.0, tl.sqrt_rn(mean_square + eps))


@triton.jit
def short_row(x, y, columns, eps, BLOCK: tl.constexpr):
    x += tl.program_id(0) * columns
    y += tl.program_id(0) * columns
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(x + column, mask=column < columns, other=0.0)
        total += value * value
    mean_square = tl.div_rn(tl.sum(total, axis=0), tl.cast(columns, tl.float32))
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(x + column, mask=column < columns, other=0.0)
        tl.store(y + column, scaled(value, mean_square, eps), mask=column < columns)


@triton.jit
def endless_row(x, y, columns, eps):
    total = 0.0
    for column in range(columns):
        value = tl.load(x + column)
        total += value * value
    tl.store(y, scaled(total, total, eps))


@triton.jit
def of_nobody(x):
    tl.store(x, 0.0)


@subject(
    op="rms_norm",
    language="triton",
    variance="rms",
    accumulates="float32",
    dtypes=("float32",),
    trees=tree(depth=depth),
    differentiable=False,
)
def two_kernels(input, eps=1e-5):
    if input.dtype not in DTYPES:
        raise ValueError(f"{input.dtype} is not supported")
    x = input.detach().contiguous()
    y = torch.empty_like(x)
    columns = x.shape[-1]
    if not x.numel():
        return y
    if columns >= 2**24:
        endless_row[(1,)](x, y, columns, float(eps))
    else:
        short_row[(x.numel() // columns,)](x, y, columns, float(eps), BLOCK=32)
    return y
