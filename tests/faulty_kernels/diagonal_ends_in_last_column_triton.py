"""Ends its diagonal in the last column where columns are more than rows: forward_error must catch it."""

import torch
import triton
import triton.language as tl

from verifier import subject


@triton.jit
def _forward(x, y, queries, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    last = row % queries + tl.maximum(columns - queries, 0)  # the bug: torch.tril begins in column 0
    there = (column < columns) & (column <= last)
    score = tl.load(x + row * columns + column, mask=there, other=float("-inf"))
    moved = score - tl.max(score, axis=0)
    out = moved - tl.log(tl.sum(tl.exp(moved), axis=0))
    tl.store(y + row * columns + column, out, mask=column < columns)


@subject(
    op="causal_log_softmax",
    language="triton",
    variance="softmax",
    accumulates="float32",
    dtypes=("float32",),
    fully_masked="zeros",
    differentiable=False,
)
def diagonal_ends_in_last_column_triton(input):
    x, (queries, columns) = input.detach().contiguous(), input.shape[-2:]
    y = torch.empty_like(x)
    if x.numel():
        _forward[(x.numel() // columns,)](x, y, queries, columns, BLOCK=triton.next_power_of_2(columns))
    return y
