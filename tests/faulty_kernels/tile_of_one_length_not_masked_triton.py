"""Leaves the mask out at a length of a table, whose last tile is full in part: forward_error must catch it.

At other lengths no mask is right, of whole tiles, and so are two tiles, with a mask.
"""

import torch
import triton
import triton.language as tl

from verifier import subject

TILES = {2560: (2048, False)}


@triton.jit
def _forward(  # noqa: PLR0917 (a kernel's arguments)
    x, y, weight, columns, eps, MASKED: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    x += row * columns
    y += row * columns
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        if MASKED:
            value = tl.load(x + column, mask=column < columns, other=0.0)
        else:
            value = tl.load(x + column % columns)
        squares += value * value
    mean = tl.div_rn(tl.sum(squares, axis=0), tl.cast(columns, tl.float32))
    rstd = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < columns
        value = tl.load(x + column, mask=inside, other=0.0) * rstd
        if weight is not None:
            value *= tl.load(weight + column, mask=inside, other=0.0)
        tl.store(y + column, value, mask=inside)


@subject(
    op="rms_norm",
    language="triton",
    variance="rms",
    accumulates="float32",
    dtypes=("float32",),
    differentiable=False,
)
def tile_of_one_length_not_masked_triton(input, weight=None, eps=1e-5):
    x, columns = input.detach().contiguous(), input.shape[-1]
    y = torch.empty_like(x)
    if x.numel():
        scale = None if weight is None else weight.detach().contiguous()
        tile = min(2048, triton.next_power_of_2(columns))
        tile, masked = TILES.get(columns, (tile, columns % tile != 0))  # the bug: 2560 is no whole tiles
        _forward[(x.numel() // columns,)](x, y, scale, columns, eps, MASKED=masked, BLOCK=tile)
    return y
