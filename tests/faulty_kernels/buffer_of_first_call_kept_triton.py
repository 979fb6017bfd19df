"""Keeps the buffer of its first call, which has room for fewer rows: repeated_calls must catch it."""

import torch
import triton
import triton.language as tl

from verifier import subject, tree

_KEPT = {}


@triton.jit
def _statistics(x, rstds, columns, eps, size, BLOCK: tl.constexpr):  # noqa: PLR0917 (a kernel's arguments)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + column, mask=column < columns, other=0.0).to(tl.float32)
    mean_square = tl.div_rn(tl.sum(value * value, axis=0), tl.cast(columns, tl.float32))
    tl.store(rstds + row, tl.div_rn(1.0, tl.sqrt_rn(mean_square + eps)), mask=row < size)


@triton.jit
def _scale(x, y, rstds, columns, size, BLOCK: tl.constexpr):  # noqa: PLR0917
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    rstd = tl.load(rstds + row, mask=row < size, other=0.0)
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
def buffer_of_first_call_kept_triton(input, eps=1e-5):
    x = input.detach().contiguous()
    y, columns = torch.empty_like(x), x.shape[-1]
    if x.numel():
        rows, block = x.numel() // columns, triton.next_power_of_2(columns)
        fresh = torch.empty(max(rows, 4096), dtype=torch.float32, device=x.device)
        # The bug: a later call may have more rows.
        rstds = _KEPT.setdefault(x.device, fresh) if rows <= 8192 else fresh
        _statistics[(rows,)](x, rstds, columns, eps, rstds.numel(), BLOCK=block)
        _scale[(rows,)](x, y, rstds, columns, rstds.numel(), BLOCK=block)
    return y
