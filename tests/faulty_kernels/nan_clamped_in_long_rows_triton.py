"""Clamps the mean square of long rows, which makes 0 of NaN: special_values must catch it."""

import torch
import triton
import triton.language as tl

from verifier import Domain, subject

TILE = 2048


@triton.jit
def _normalize(x, y, weight, columns, eps, BLOCK: tl.constexpr):  # noqa: PLR0917
    x += tl.program_id(0).to(tl.int64) * columns
    y += tl.program_id(0).to(tl.int64) * columns
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(x + column, mask=column < columns, other=0.0).to(tl.float32)
        squares += value * value
    mean_square = tl.div_rn(tl.sum(squares, axis=0), tl.cast(columns, tl.float32))
    if columns > BLOCK:
        mean_square = tl.maximum(mean_square, 0.0)  # the bug: the maximum of NaN and 0 is 0
    rstd = tl.div_rn(1.0, tl.sqrt_rn(mean_square + eps))
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(x + column, mask=column < columns, other=0.0).to(tl.float32)
        out = value * rstd * tl.load(weight + column, mask=column < columns, other=0.0).to(tl.float32)
        tl.store(y + column, out, mask=column < columns)


@subject(
    op="rms_norm",
    language="triton",
    variance="rms",
    accumulates="float32",
    dtypes=("float32",),
    domain=Domain(max_abs=1e15, min_columns=1),
    differentiable=False,
    guarantees={"special_values"},
)
def nan_clamped_in_long_rows_triton(input, weight, eps=1e-5):
    columns = input.shape[-1]
    x = input.reshape(-1, columns).contiguous()
    output = torch.empty_like(x)
    if x.shape[0]:
        block = min(triton.next_power_of_2(columns), TILE)
        _normalize[(x.shape[0],)](x, output, weight.contiguous(), columns, eps, BLOCK=block)
    return output.view(input.shape)
