"""Never rescales an online sum at a new maximum: forward_error must catch it, and formula does."""

import torch
import triton
import triton.language as tl

from verifier import subject, tile

BLOCK = 128  # columns of a tile: rows of 1000 columns meet new maxima
LOWEST = tl.constexpr(-3.4028234663852886e38)  # the smallest finite fp32


@triton.jit
def _forward(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + column, mask=column < columns, other=float("-inf")).to(tl.float32)
    top = tl.maximum(value, LOWEST)
    lanes = tl.exp(value - top)
    for start in range(BLOCK, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * columns + column, mask=column < columns, other=float("-inf")).to(tl.float32)
        larger = tl.maximum(top, value)
        lanes += tl.exp(value - larger)  # the bug: the sum so far is not multiplied by exp(top - larger)
        top = larger
    highest = tl.max(top, axis=0)
    top = tl.where(lanes > 0.0, top, highest)
    total = tl.sum(lanes * tl.exp(top - highest), axis=0)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < columns
        value = tl.load(x + row * columns + column, mask=inside, other=float("-inf")).to(tl.float32)
        tl.store(y + row * columns + column, tl.div_rn(tl.exp(value - highest), total), mask=inside)


@subject(
    op="softmax",
    language="triton",
    variance="softmax",
    accumulates="float32",
    formula="online",
    dtypes=("float32",),
    trees=tile(block=BLOCK, threads=128),
    differentiable=False,
)
def rescaling_forgotten_triton(input, dim):
    x = input.detach().movedim(dim, -1).contiguous()
    y = torch.empty_like(x)
    columns = x.shape[-1]
    if x.numel():
        _forward[(x.numel() // columns,)](x, y, columns, BLOCK=BLOCK)
    return y.movedim(-1, dim)
