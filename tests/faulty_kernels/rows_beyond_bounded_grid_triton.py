"""Bounds its grid, and no block goes through further rows: forward_error must catch it, in many rows."""

import torch
import triton
import triton.language as tl

from verifier import subject, tree

MOST_BLOCKS = 40_000
BLOCK_ROWS = 2


@triton.jit
def _forward(x, y, rows, columns, eps, BLOCK: tl.constexpr, ROWS: tl.constexpr):  # noqa: PLR0917 (a kernel's arguments)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < columns)
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    mean_square = tl.div_rn(tl.sum(value * value, axis=1), tl.cast(columns, tl.float32))
    rstd = tl.div_rn(1.0, tl.sqrt_rn(mean_square + eps))
    tl.store(y + row * columns + column, value * rstd[:, None], mask=inside)


@subject(
    op="rms_norm",
    language="triton",
    variance="rms",
    accumulates="float32",
    dtypes=("float32",),
    trees=tree(depth=lambda columns: max(columns, 1)),
    differentiable=False,
)
def rows_beyond_bounded_grid_triton(input, eps=1e-5):
    x = input.detach().contiguous()
    y, columns = torch.empty_like(x), x.shape[-1]
    if x.numel():
        rows = x.numel() // columns
        grid = (min(triton.cdiv(rows, BLOCK_ROWS), MOST_BLOCKS),)  # the bug: nobody takes the rows beyond
        _forward[grid](x, y, rows, columns, eps, BLOCK=triton.next_power_of_2(columns), ROWS=BLOCK_ROWS)
    return y
