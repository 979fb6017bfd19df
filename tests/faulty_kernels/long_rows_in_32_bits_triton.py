"""Multiplies row and columns in 32 bits where rows are long: huge_extents must catch it, in such rows."""

import torch
import triton
import triton.language as tl

from verifier import Domain, subject, tile, tree

LONG = 3000


@triton.jit
def _short(x, y, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    _normalized(x + row * columns, y + row * columns, columns, eps, BLOCK)


@triton.jit
def _long(x, y, columns, eps, BLOCK: tl.constexpr):
    # The bug: row and columns are 32-bit numbers, and so is their product.
    row = tl.program_id(0)
    _normalized(x + row * columns, y + row * columns, columns, eps, BLOCK)


@triton.jit
def _normalized(x, y, columns, eps, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.sum(value, axis=0), tl.cast(columns, tl.float32))
    centred = tl.where(inside, value - mean, 0.0)
    variance = tl.div_rn(tl.sum(centred * centred, axis=0), tl.cast(columns, tl.float32))
    tl.store(y + column, centred * tl.div_rn(1.0, tl.sqrt_rn(variance + eps)), mask=inside)


def _depth(columns):
    return tile(block=1 << max(columns - 1, 0).bit_length(), threads=128, element_bytes=2).depth(columns)


@subject(
    op="layer_norm",
    language="triton",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float16",),
    trees=tree(depth=_depth),
    mean_contraction="none",
    differentiable=False,
)
def long_rows_in_32_bits_triton(input, eps=1e-5):
    x = input.detach().contiguous()
    y = torch.empty_like(x)
    columns = x.shape[-1]
    if x.numel():
        kernel = _long if columns > LONG else _short
        kernel[(x.numel() // columns,)](x, y, columns, float(eps), BLOCK=triton.next_power_of_2(columns))
    return y
