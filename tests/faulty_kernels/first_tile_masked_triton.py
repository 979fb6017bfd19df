"""A softmax in one sweep, NaN where its first tile is -inf throughout: special_values must catch it."""

import math

import torch
import triton
import triton.language as tl

from verifier import subject, tree


@triton.jit
def _forward(x, y, inner, columns, BLOCK: tl.constexpr):
    number = tl.program_id(0).to(tl.int64)
    first = number // inner * inner * columns + number % inner
    top = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        value = tl.load(x + first + column * inner, mask=column < columns, other=float("-inf"))
        largest = tl.maximum(top, tl.max(value, axis=0))
        # The bug: of -inf alone, both differences are NaN.
        total = total * tl.exp(top - largest) + tl.sum(tl.exp(value - largest), axis=0)
        top = largest
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        value = tl.load(x + first + column * inner, mask=column < columns, other=float("-inf"))
        tl.store(y + first + column * inner, tl.div_rn(tl.exp(value - top), total), mask=column < columns)


@subject(
    op="softmax",
    language="triton",
    variance="softmax",
    accumulates="float32",
    formula="online",
    dtypes=("float32",),
    trees=tree(depth=lambda columns: max(columns, 1)),
    differentiable=False,
)
def first_tile_masked_triton(input, dim):
    x = input.detach().contiguous()
    y = torch.empty_like(x)
    if x.numel():
        dim %= x.dim()
        columns, inner = x.shape[dim], math.prod(x.shape[dim + 1 :])
        _forward[(x.numel() // columns,)](x, y, inner, columns, BLOCK=1024)
    return y
