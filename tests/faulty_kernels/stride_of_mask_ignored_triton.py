"""Reads a mask that is broadcast as if it had the input's strides: forward_error must catch it."""

import torch
import triton
import triton.language as tl

from verifier import subject


@triton.jit
def _forward(x, mask, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    there = column < columns
    if mask is not None:
        there &= tl.load(mask + row * columns + column, mask=there, other=0) != 0  # the bug: its own strides
    score = tl.load(x + row * columns + column, mask=there, other=float("-inf")).to(tl.float32)
    top = tl.max(score, axis=0)
    power = tl.exp(score - tl.where(top == float("-inf"), 0.0, top))
    total = tl.sum(power, axis=0)
    out = tl.div_rn(power, tl.where(total == 0.0, 1.0, total))
    tl.store(y + row * columns + column, out, mask=column < columns)


@subject(
    op="masked_softmax",
    language="triton",
    variance="softmax",
    accumulates="float32",
    dtypes=("float32",),
    fully_masked="zeros",
    differentiable=False,
)
def stride_of_mask_ignored_triton(input, mask=None):
    x, columns = input.detach().contiguous(), input.shape[-1]
    y = torch.empty_like(x)
    if x.numel():
        there = None if mask is None else mask.expand(x.shape)
        _forward[(x.numel() // columns,)](x, there, y, columns, BLOCK=triton.next_power_of_2(columns))
    return y
