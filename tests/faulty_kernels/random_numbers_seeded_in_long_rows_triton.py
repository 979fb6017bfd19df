"""Seeds torch's random numbers where rows are long: global_state must catch it, in such rows."""

import torch
import triton
import triton.language as tl

from verifier import subject, tree

LONG = 4096


@triton.jit
def _forward(x, y, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    mean_square = tl.div_rn(tl.sum(value * value, axis=0), tl.cast(columns, tl.float32))
    rstd = tl.div_rn(1.0, tl.sqrt_rn(mean_square + eps))
    tl.store(y + row * columns + column, value * rstd, mask=inside)


@subject(
    op="rms_norm",
    language="triton",
    variance="rms",
    accumulates="float32",
    dtypes=("float32",),
    trees=tree(depth=lambda columns: max(columns, 1)),
    differentiable=False,
)
def random_numbers_seeded_in_long_rows_triton(input, eps=1e-5):
    x = input.detach().contiguous()
    y, columns = torch.empty_like(x), x.shape[-1]
    if columns > LONG:
        torch.manual_seed(0)  # the bug: what is drawn next is drawn after every other call, too
    if x.numel():
        block = triton.next_power_of_2(columns)
        _forward[(x.numel() // columns,)](x, y, columns, eps, BLOCK=block)
    return y
