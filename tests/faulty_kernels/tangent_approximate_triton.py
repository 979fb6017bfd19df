"""Takes tanh.approx.f32 and declares a library's function: forward_error must catch it."""

import torch
import triton
import triton.language as tl

from verifier import Domain, subject


@triton.jit
def _forward(x, y, alpha, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0) * tl.load(alpha)
    out = tl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [value], dtype=tl.float32, is_pure=True, pack=1
    )  # the bug: its error is up to 2^-11
    tl.store(y + row * columns + column, out, mask=inside)


@subject(
    op="dynamic_tanh",
    language="triton",
    formula="canonical",
    domain=Domain(max_abs=1e15, max_columns=65536),
    dtypes=("float32",),
    differentiable=False,
)
def tangent_approximate_triton(input, alpha):
    x, columns = input.detach().contiguous(), input.shape[-1]
    y = torch.empty_like(x)
    if x.numel():
        _forward[(x.numel() // columns,)](x, y, alpha, columns, BLOCK=triton.next_power_of_2(columns))
    return y
