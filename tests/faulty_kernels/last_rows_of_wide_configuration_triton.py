"""Rounds the number of programs down, where a configuration takes 64 rows each: autotuning must catch it."""

import torch
import triton
import triton.language as tl

from verifier import subject, tree


@triton.autotune([triton.Config({"ROWS": rows}) for rows in (1, 64)], key=["columns"])
@triton.jit
def _forward(x, y, rows, columns, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # noqa: PLR0917
    column = tl.arange(0, BLOCK)
    for number in range(ROWS):
        row = tl.program_id(0).to(tl.int64) * ROWS + number
        inside = (column < columns) & (row < rows)
        value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
        mean_square = tl.div_rn(tl.sum(value * value, axis=0), tl.cast(columns, tl.float32))
        tl.store(
            y + row * columns + column, value * tl.div_rn(1.0, tl.sqrt_rn(mean_square + eps)), mask=inside
        )


@subject(
    op="rms_norm",
    language="triton",
    variance="rms",
    accumulates="float32",
    dtypes=("float32",),
    trees=tree(depth=lambda columns: max(columns, 1)),
    differentiable=False,
)
def last_rows_of_wide_configuration_triton(input, eps=1e-5):
    x = input.detach().contiguous()
    y, columns = torch.zeros_like(x), x.shape[-1]
    if x.numel():
        rows, block = x.numel() // columns, triton.next_power_of_2(columns)
        # The bug: of 65 rows the last is left out.
        _forward[lambda meta: (max(rows // meta["ROWS"], 1),)](x, y, rows, columns, eps, BLOCK=block)
    return y
