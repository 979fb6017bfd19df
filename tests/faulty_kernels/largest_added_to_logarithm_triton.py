"""Subtracts the logarithm and the largest element as one number of fp32: forward_error must catch it."""

import torch
import triton
import triton.language as tl

from verifier import subject


@triton.jit
def _forward(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=float("-inf"))
    top = tl.max(value, axis=0)
    whole = top + tl.log(tl.sum(tl.exp(value - top), axis=0))
    tl.store(y + row * columns + column, value - whole, mask=inside)  # the bug: (value - top) - log(sum)


@subject(
    op="log_softmax",
    language="triton",
    variance="softmax",
    accumulates="float32",
    formula="canonical",
    dtypes=("float32",),
    differentiable=False,
)
def largest_added_to_logarithm_triton(input, dim):
    x = input.detach().movedim(dim, -1).contiguous()
    y, columns = torch.empty_like(x), x.shape[-1]
    if x.numel():
        _forward[(x.numel() // columns,)](x, y, columns, BLOCK=triton.next_power_of_2(columns))
    return y.movedim(-1, dim)
