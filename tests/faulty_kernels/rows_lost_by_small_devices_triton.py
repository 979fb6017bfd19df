"""Has too few rows for each program of a small device if there are many: modes must catch it."""

import torch
import triton
import triton.language as tl

from verifier import subject, tree


@triton.jit
def _forward(x, y, rows, columns, eps, chunk, BLOCK: tl.constexpr):  # noqa: PLR0917 (a kernel's arguments)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    begin = tl.program_id(0).to(tl.int64) * chunk
    for row in range(begin, tl.minimum(begin + chunk, rows)):
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
def rows_lost_by_small_devices_triton(input, eps=1e-5):
    x = input.detach().contiguous()
    y, columns = torch.zeros_like(x), x.shape[-1]
    if x.numel():
        rows, block = x.numel() // columns, triton.next_power_of_2(columns)
        processors = torch.cuda.get_device_properties(x.device).multi_processor_count
        programs = processors if rows > 2000 else 256
        # The bug: of few processors each has more rows than these; the last ones stay zero.
        chunk = min(triton.cdiv(rows, programs), max(32, triton.cdiv(rows, 128)))
        _forward[(programs,)](x, y, rows, columns, eps, chunk, BLOCK=block)
    return y
