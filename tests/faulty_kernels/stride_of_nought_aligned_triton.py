"""Lets a compiler take a row's offset for aligned where there is one row: batch_invariance must catch it."""

import torch
import triton
import triton.language as tl

from verifier import subject, tree


@triton.jit  # the bug: without do_not_specialize=["rows", "x_batch"]
def _forward(x, y, x_batch, x_row, rows, columns, eps, BLOCK: tl.constexpr):  # noqa: PLR0917
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    # Of one row the offset is a product with 0: a lane then loads, and adds, elements that are neighbours.
    x += row // rows * x_batch + row % rows * x_row
    value = tl.load(x + column, mask=column < columns, other=0.0).to(tl.float32)
    mean_square = tl.div_rn(tl.sum(value * value, axis=0), tl.cast(columns, tl.float32))
    rstd = tl.div_rn(1.0, tl.sqrt_rn(mean_square + eps))
    tl.store(y + row * columns + column, value * rstd, mask=column < columns)


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
def stride_of_nought_aligned_triton(input, eps=1e-5):
    x = input.detach().contiguous()
    y, columns = torch.empty_like(x), x.shape[-1]
    if x.numel():
        rows, block = x.numel() // columns, triton.next_power_of_2(columns)
        _forward[(rows,)](x, y, 0, columns, rows, columns, eps, BLOCK=block, num_warps=4)
    return y
