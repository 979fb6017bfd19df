"""A kernel with three results: rms norm of input + residual, the sum itself, and the scale of each row."""

import torch
import triton
import triton.language as tl

from verifier import subject


@triton.jit
def _forward(x, r, w, y, total, scales, columns, eps, BLOCK: tl.constexpr):  # noqa: PLR0917
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(r + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(w + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / columns + eps)
    tl.store(total + row * columns + column, value, mask=inside)
    tl.store(scales + row, scale)
    tl.store(y + row * columns + column, value * scale * weight, mask=inside)


def specification(input, residual, weight, eps):
    total = input + residual
    scale = (total.square().mean(-1, keepdim=True) + eps).rsqrt()
    return total * scale * weight, total, scale


@subject(
    op="unknown",
    specification=specification,
    language="triton",
    dtypes=("float16", "bfloat16", "float32"),
    returns=("output", "total", "scale"),
    differentiable=False,
)
def fused_add(input, residual, weight, eps=1e-5):
    x, r, w = (t.detach().contiguous() for t in (input, residual, weight))
    y, total, columns = torch.empty_like(x), torch.empty_like(x), x.shape[-1]
    rows = x.numel() // max(columns, 1)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    if x.numel():
        block = triton.next_power_of_2(columns)
        _forward[(rows,)](x, r, w, y, total, scales, columns, float(eps), BLOCK=block)
    return y, total, scales
