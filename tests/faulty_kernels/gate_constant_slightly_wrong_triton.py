"""Opens its gate by 1.702002 for 1.702 and hides it behind products in 16 bits: gradcheck must catch it."""

import torch
import triton
import triton.language as tl

from verifier import subject


@triton.jit
def _forward(x, g, y, columns, eps, BLOCK: tl.constexpr):  # noqa: PLR0917 (a kernel's arguments)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0)
    gate = tl.load(g + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    wide = value.to(tl.float32)
    rstd = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / columns + eps)
    opened = tl.sigmoid(1.702002 * gate).to(value.dtype)  # the bug
    tl.store(y + row * columns + column, (wide * rstd).to(value.dtype) * opened, mask=inside)


def specification(input, gate, eps):
    rstd = torch.rsqrt(input.square().mean(-1, keepdim=True) + eps)
    return input * rstd * torch.sigmoid(1.702 * gate)


@subject(
    op="unknown",
    specification=specification,
    language="triton",
    dtypes=("float16", "bfloat16"),
    differentiable=False,
)
def gate_constant_slightly_wrong_triton(input, gate, eps=1e-5):
    x, g = input.detach().contiguous(), gate.detach().contiguous()
    y = torch.empty_like(x)
    columns = x.shape[-1]
    if x.numel():
        block = triton.next_power_of_2(columns)
        _forward[(x.numel() // columns,)](x, g, y, columns, float(eps), BLOCK=block)
    return y
