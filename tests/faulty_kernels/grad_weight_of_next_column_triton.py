"""Adds 0 times the gradient of the next column to the sums over rows: influence must catch it."""

import torch
import triton
import triton.language as tl

from verifier import Domain, subject, tile, tree


@triton.jit
def _forward(x, y, means, rstds, weight, bias, columns, eps, BLOCK: tl.constexpr):  # noqa: PLR0917 (a kernel's arguments)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.sum(value, axis=0), tl.cast(columns, tl.float32))
    centred = tl.where(inside, value - mean, 0.0)
    variance = tl.div_rn(tl.sum(centred * centred, axis=0), tl.cast(columns, tl.float32))
    rstd = tl.div_rn(1.0, tl.sqrt_rn(variance + eps))
    out = centred * rstd
    if weight is not None:
        out *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        out += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * columns + column, out, mask=inside)
    tl.store(means + row, mean)
    tl.store(rstds + row, rstd)


@triton.jit
def _grad_input(dx, dy, x, means, rstds, weight, columns, BLOCK: tl.constexpr):  # noqa: PLR0917
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(dy + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    rstd = tl.load(rstds + row)
    hat = tl.where(inside, (value - tl.load(means + row)) * rstd, 0.0)
    if weight is not None:
        g *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    c1 = tl.div_rn(tl.sum(hat * g, axis=0), tl.cast(columns, tl.float32))
    c2 = tl.div_rn(tl.sum(g, axis=0), tl.cast(columns, tl.float32))
    tl.store(dx + row * columns + column, (g - (hat * c1 + c2)) * rstd, mask=inside)


@triton.jit
def _sums(dw, db, dy, x, means, rstds, rows, columns, BLOCK: tl.constexpr):  # noqa: PLR0917
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    total_dw = tl.zeros((BLOCK,), tl.float32)
    total_db = tl.zeros((BLOCK,), tl.float32)
    for row in range(rows):
        place = row * columns + column
        d = tl.load(dy + place, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        # The bug: no value shows it while the neighbour is finite.
        neighbour = row * columns + (column + 1) % columns
        d += 0.0 * tl.load(dy + neighbour, mask=inside, other=0.0).to(tl.float32)
        total_dw += d * (value - tl.load(means + row)) * tl.load(rstds + row)
        total_db += d
    if dw is not None:
        tl.store(dw + column, total_dw, mask=inside)
    if db is not None:
        tl.store(db + column, total_db, mask=inside)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, eps):
        rows, columns = input.numel() // max(input.shape[-1], 1), input.shape[-1]
        x, y = input.contiguous(), torch.empty(input.shape, dtype=input.dtype, device=input.device)
        w, b = (None if vector is None else vector.contiguous() for vector in (weight, bias))
        means, rstds = (torch.empty(rows, device=input.device) for _ in range(2))
        if x.numel():
            block = triton.next_power_of_2(columns)
            _forward[(rows,)](x, y, means, rstds, w, b, columns, float(eps), BLOCK=block)
        ctx.save_for_backward(x, w, b, means, rstds)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        x, w, b, means, rstds = ctx.saved_tensors
        rows, columns = means.numel(), x.shape[-1]
        dy, dx = grad_output.contiguous(), torch.empty_like(x)
        dw, db = (None if vector is None else torch.zeros_like(vector) for vector in (w, b))
        if x.numel():
            block = triton.next_power_of_2(columns)
            _grad_input[(rows,)](dx, dy, x, means, rstds, w, columns, BLOCK=block)
            _sums[(triton.cdiv(columns, 64),)](dw, db, dy, x, means, rstds, rows, columns, BLOCK=64)
        return dx, dw, db, None


def _depth(columns):
    return tile(block=1 << max(columns - 1, 0).bit_length(), threads=128, element_bytes=2).depth(columns)


@subject(
    op="layer_norm",
    language="triton",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float16", "float32"),
    trees=tree(depth=_depth),
    mean_contraction="none",
)
def grad_weight_of_next_column_triton(input, weight=None, bias=None, eps=1e-5):
    return _LayerNorm.apply(input, weight, bias, eps)
