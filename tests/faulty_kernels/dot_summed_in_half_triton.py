"""Sums dy * y of softmax's backward pass in float16, declares float32 and no tree: gradient must catch it."""

import torch
import triton
import triton.language as tl

from verifier import Domain, subject


@triton.jit
def _forward(x, y, columns, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < columns
    value = tl.load(x + place, mask=inside, other=float("-inf")).to(tl.float32)
    shifted = tl.exp(value - tl.max(value, axis=0))
    tl.store(y + place, tl.div_rn(shifted, tl.sum(shifted, axis=0)), mask=inside)


@triton.jit
def _backward(dy, y, dx, columns, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < columns
    d = tl.load(dy + place, mask=inside, other=0.0)
    value = tl.load(y + place, mask=inside, other=0.0)
    total = tl.sum(d * value, axis=0)  # the bug
    tl.store(dx + place, value.to(tl.float32) * (d.to(tl.float32) - total.to(tl.float32)), mask=inside)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        _forward[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        dx = torch.empty_like(y)
        _backward[(y.shape[0],)](dy.contiguous(), y, dx, y.shape[1], BLOCK=triton.next_power_of_2(y.shape[1]))
        return dx


@subject(
    op="softmax",
    language="triton",
    variance="softmax",
    accumulates="float32",
    domain=Domain(max_abs=1e4, min_rows=1, min_columns=1),
    dtypes=("float16",),
)
def dot_summed_in_half_triton(input, dim=-1):
    rows = input.movedim(dim, -1)
    flat = rows.reshape(-1, rows.shape[-1]).contiguous()
    return _Softmax.apply(flat).reshape(rows.shape).movedim(-1, dim)
