"""Each of 512 programs goes through four rows at most: forward_error must catch it."""

import torch
import triton
import triton.language as tl

from verifier import subject, tree


@triton.jit
def _forward(x, y, rows, columns, each, eps, BLOCK: tl.constexpr):  # noqa: PLR0917 (a kernel's arguments)
    column = tl.arange(0, BLOCK)
    for number in tl.static_range(4):  # the bug: of more than 2048 rows each program has more
        row = tl.program_id(0).to(tl.int64) * each + number
        inside = (column < columns) & (row < rows) & (number < each)
        value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
        mean_square = tl.div_rn(tl.sum(value * value, axis=0), tl.cast(columns, tl.float32))
        out = value * tl.div_rn(1.0, tl.sqrt_rn(mean_square + eps))
        tl.store(y + row * columns + column, out, mask=inside)


@subject(
    op="rms_norm",
    language="triton",
    variance="rms",
    accumulates="float32",
    dtypes=("float32",),
    trees=tree(depth=lambda columns: max(columns, 1)),
    differentiable=False,
)
def rows_beyond_four_each_triton(input, eps=1e-5):
    x = input.detach().contiguous()
    y, columns = torch.zeros_like(x), x.shape[-1]
    if x.numel():
        rows = x.numel() // columns
        each = triton.cdiv(rows, 512)
        block = triton.next_power_of_2(columns)
        _forward[(triton.cdiv(rows, each),)](x, y, rows, columns, each, eps, BLOCK=block)
    return y
