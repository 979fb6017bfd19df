"""Adds the rows of its weight gradient in the order in which blocks are served: determinism must catch it."""

import torch
import triton
import triton.language as tl

from verifier import Domain, subject


@triton.jit
def _forward(x, y, w, rstds, columns, eps, BLOCK: tl.constexpr):  # noqa: PLR0917 (a kernel's arguments)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(w + column, mask=inside, other=0.0).to(tl.float32)
    rstd = 1.0 / tl.sqrt(tl.sum(value * value, axis=0) / columns + eps)
    tl.store(rstds + row, rstd)
    tl.store(y + row * columns + column, value * rstd * weight, mask=inside)


@triton.jit
def _backward(dy, x, w, rstds, dx, dw, columns, BLOCK: tl.constexpr):  # noqa: PLR0917
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    rstd = tl.load(rstds + row)
    hat = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32) * rstd
    grad = tl.load(dy + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    g = grad * tl.load(w + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(g * hat, axis=0) / columns
    tl.store(dx + row * columns + column, (g - hat * mean) * rstd, mask=inside)
    tl.atomic_add(dw + column, grad * hat, mask=inside)  # the bug: it promises one order


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, eps):
        x, w = input.contiguous(), weight.contiguous()
        columns = x.shape[-1]
        rows = x.numel() // max(columns, 1)
        y, rstds = torch.empty_like(x), torch.empty(rows, dtype=torch.float32, device=x.device)
        if x.numel():
            _forward[(rows,)](x, y, w, rstds, columns, float(eps), BLOCK=triton.next_power_of_2(columns))
        ctx.save_for_backward(x, w, rstds)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, w, rstds = ctx.saved_tensors
        dy, dx, columns = grad_output.contiguous(), torch.empty_like(x), x.shape[-1]
        total = torch.zeros(w.shape, dtype=torch.float32, device=w.device)
        if x.numel():
            block = triton.next_power_of_2(columns)
            _backward[(len(rstds),)](dy, x, w, rstds, dx, total, columns, BLOCK=block)
        return dx, total.to(w.dtype), None


@subject(
    op="rms_norm",
    language="triton",
    variance="rms",
    accumulates="float32",
    dtypes=("float32",),
    domain=Domain(max_abs=1e15),
    guarantees={"determinism"},
)
def sums_by_atomics_triton(input, weight=None, eps=1e-5):
    if weight is None:
        weight = torch.ones(input.shape[-1:], dtype=input.dtype, device=input.device)
    return _Norm.apply(input, weight, eps)
