"""Begins to look for the largest element at the smallest positive number: forward_error must catch it."""

import torch
import triton
import triton.language as tl

from verifier import subject


@triton.jit
def _forward(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=float("-inf")).to(tl.float32)
    top = tl.maximum(tl.max(value, axis=0), 1.1754943508222875e-38)  # the bug: FLT_MIN is no least number
    power = tl.exp(value - top)
    tl.store(y + row * columns + column, tl.div_rn(power, tl.sum(power, axis=0)), mask=inside)


@subject(
    op="softmax",
    language="triton",
    variance="softmax",
    accumulates="float32",
    dtypes=("float32",),
    differentiable=False,
)
def largest_begins_above_zero_triton(input):
    x, columns = input.detach().contiguous(), input.shape[-1]
    y = torch.empty_like(x)
    if x.numel():
        _forward[(x.numel() // columns,)](x, y, columns, BLOCK=triton.next_power_of_2(columns))
    return y
