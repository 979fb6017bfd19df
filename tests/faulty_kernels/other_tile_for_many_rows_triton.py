"""Adds a row in another order where there are thousands: batch_invariance must catch it, in so many rows."""

import torch
import triton
import triton.language as tl

from verifier import subject, tree

MANY = 1900


@triton.jit
def _forward(x, y, rows, columns, eps, TALL: tl.constexpr, BLOCK: tl.constexpr):  # noqa: PLR0917
    row = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    place = row[:, None] * columns + column[None, :]
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    mean_square = tl.div_rn(tl.sum(value * value, axis=1), tl.cast(columns, tl.float32))
    rstd = tl.div_rn(1.0, tl.sqrt_rn(mean_square + eps))
    tl.store(y + place, value * rstd[:, None], mask=inside)


@subject(
    op="rms_norm",
    language="triton",
    variance="rms",
    accumulates="float32",
    dtypes=("float32",),
    trees=tree(depth=lambda columns: max(columns, 1)),
    differentiable=False,
    guarantees={"determinism", "batch_invariance"},
)
def other_tile_for_many_rows_triton(input, eps=1e-5):
    x = input.detach().contiguous()
    y, columns = torch.empty_like(x), x.shape[-1]
    if x.numel():
        rows, block = x.numel() // columns, triton.next_power_of_2(columns)
        tall = 4 if rows > MANY else 2  # the bug: of taller tiles, a lane adds more elements of one row
        _forward[(triton.cdiv(rows, tall),)](x, y, rows, columns, eps, TALL=tall, BLOCK=block, num_warps=4)
    return y
