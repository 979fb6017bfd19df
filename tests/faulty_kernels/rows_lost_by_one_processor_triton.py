"""Steps over rows as if there were always two programs, one multiprocessor or not: modes must catch it."""

import torch
import triton
import triton.language as tl

from verifier import subject, tree


@triton.jit
def _forward(x, y, rows, columns, eps, BLOCK: tl.constexpr):  # noqa: PLR0917 (a kernel's arguments)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    step = tl.maximum(tl.num_programs(0), 2)  # the bug: of one program, every other row stays zero
    for row in range(tl.program_id(0), rows, step):
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
def rows_lost_by_one_processor_triton(input, eps=1e-5):
    x = input.detach().contiguous()
    y, columns = torch.zeros_like(x), x.shape[-1]
    if x.numel():
        programs = torch.cuda.get_device_properties(x.device).multi_processor_count
        block = triton.next_power_of_2(columns)
        _forward[(programs,)](x, y, x.numel() // columns, columns, eps, BLOCK=block)
    return y
