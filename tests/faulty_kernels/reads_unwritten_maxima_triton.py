"""Takes the maximum of parts that no block wrote too: memory must catch it, forward_error by chance."""

import torch
import triton
import triton.language as tl

from verifier import subject


@triton.jit
def _maxima(x, parts, columns, SLOTS: tl.constexpr, BLOCK: tl.constexpr):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c = block * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + row * columns + c, mask=c < columns, other=float("-inf")).to(tl.float32)
    tl.store(parts + row * SLOTS + block, tl.max(v, axis=0))


@triton.jit
def _softmax(x, parts, y, columns, SLOTS: tl.constexpr, BLOCK: tl.constexpr):  # noqa: PLR0917 (launched so)
    row = tl.program_id(0).to(tl.int64)
    # The bug: there are more slots than blocks. A maximum swallows NaN and whatever is small.
    top = tl.max(tl.load(parts + row * SLOTS + tl.arange(0, SLOTS)), axis=0)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + row * columns + c, mask=c < columns, other=float("-inf")).to(tl.float32)
    e = tl.exp(v - top)
    tl.store(y + row * columns + c, e / tl.sum(e, axis=0), mask=c < columns)


@subject(
    op="softmax",
    language="triton",
    variance="softmax",
    accumulates="float32",
    dtypes=("float32",),
    differentiable=False,
)
def reads_unwritten_maxima_triton(input):
    x, y = input.contiguous(), torch.empty_like(input, memory_format=torch.contiguous_format)
    if x.numel():
        columns = x.shape[-1]
        rows, blocks = x.numel() // columns, triton.cdiv(columns, 16)
        slots = 2 * triton.next_power_of_2(blocks)
        parts = torch.empty((rows, slots), dtype=torch.float32, device=x.device)
        _maxima[(rows, blocks)](x, parts, columns, slots, 16)
        _softmax[(rows,)](x, parts, y, columns, slots, triton.next_power_of_2(columns))
    return y
