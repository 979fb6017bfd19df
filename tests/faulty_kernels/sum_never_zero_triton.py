"""Adds 1e-6 to a sum of exponentials, lest a masked row be a division by 0: formula must catch it."""

import torch
import triton
import triton.language as tl

from verifier import subject


@triton.jit
def _forward(x, added, y, columns, scale, BLOCK: tl.constexpr):  # noqa: PLR0917 (a kernel's arguments)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    score = tl.load(x + row * columns + column, mask=inside, other=float("-inf")).to(tl.float32) * scale
    if added is not None:
        score += tl.load(added + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    top = tl.max(score, axis=0)
    power = tl.exp(score - tl.where(top == float("-inf"), 0.0, top))
    out = tl.div_rn(power, tl.sum(power, axis=0) + 1e-6)  # the bug: the sum of every row, not of empty ones
    tl.store(y + row * columns + column, out, mask=inside)


@subject(
    op="masked_softmax",
    language="triton",
    variance="softmax",
    accumulates="float32",
    dtypes=("float16",),
    fully_masked="zeros",
    differentiable=False,
)
def sum_never_zero_triton(input, attn_bias=None, scale=1.0):
    x, columns = input.detach().contiguous(), input.shape[-1]
    y = torch.empty_like(x)
    if x.numel():
        added = None if attn_bias is None else attn_bias.expand(x.shape).contiguous()
        block = triton.next_power_of_2(columns)
        _forward[(x.numel() // columns,)](x, added, y, columns, float(scale), BLOCK=block)
    return y
