"""Multiplies a bias that was never written by 0 where no gradient is recorded: modes must catch it."""

import torch
import triton
import triton.language as tl

from verifier import subject, tree


@triton.jit
def _forward(x, y, bias, has_bias, columns, eps, BLOCK: tl.constexpr):  # noqa: PLR0917 (a kernel's arguments)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    row = tl.program_id(0).to(tl.int64)
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    mean_square = tl.div_rn(tl.sum(value * value, axis=0), tl.cast(columns, tl.float32))
    rstd = tl.div_rn(1.0, tl.sqrt_rn(mean_square + eps))
    added = tl.load(bias + column, mask=inside, other=0.0) * has_bias  # NaN, if that is what lay there
    tl.store(y + row * columns + column, value * rstd + added, mask=inside)


@subject(
    op="rms_norm",
    language="triton",
    variance="rms",
    accumulates="float32",
    dtypes=("float32",),
    trees=tree(depth=lambda columns: max(columns, 1)),
    differentiable=False,
)
def unwritten_bias_without_grad_triton(input, eps=1e-5):
    x = input.detach().contiguous()
    y, columns = torch.empty_like(x), x.shape[-1]
    if x.numel():
        make = torch.zeros if torch.is_grad_enabled() else torch.empty  # the bug
        bias = make(columns, dtype=torch.float32, device=x.device)
        block = triton.next_power_of_2(columns)
        _forward[(x.numel() // columns,)](x, y, bias, 0.0, columns, eps, BLOCK=block)
    return y
