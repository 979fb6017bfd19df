"""Triton norm kernels of the common kind, with wrappers that know nothing of the machine."""

# ruff: noqa: PLR0917 - kernels take their arguments by position

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def layer_norm_forward(X, Y, W, B, Mean, Rstd, stride, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    X += row * stride
    Y += row * stride
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        total += tl.load(X + cols, mask=cols < N, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / N
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(X + cols, mask=cols < N, other=0.0).to(tl.float32)
        d = tl.where(cols < N, x - mean, 0.0)
        squares += d * d
    rstd = 1 / tl.sqrt(tl.sum(squares, axis=0) / N + eps)
    tl.store(Mean + row, mean)
    tl.store(Rstd + row, rstd)
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < N
        w = tl.load(W + cols, mask=mask)
        b = tl.load(B + cols, mask=mask)
        x = tl.load(X + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(Y + cols, (x - mean) * rstd * w + b, mask=mask)


@triton.jit
def layer_norm_backward(
    DX,
    DY,
    DW,
    DB,
    X,
    W,
    Mean,
    Rstd,
    Lock,
    stride,
    N,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
    BUG: tl.constexpr,
):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    group = row % GROUPS
    x = tl.load(X + row * stride + cols, mask=mask, other=0).to(tl.float32)
    dy = tl.load(DY + row * stride + cols, mask=mask, other=0).to(tl.float32)
    w = tl.load(W + cols, mask=mask).to(tl.float32)
    mean = tl.load(Mean + row)
    rstd = tl.load(Rstd + row)
    xhat = tl.where(mask, (x - mean) * rstd, 0.0)
    g = tl.where(mask, w * dy, 0.0)
    c1 = tl.sum(xhat * g, axis=0) / N
    c2 = tl.sum(g, axis=0) / N
    if BUG == "c1 over N-1":
        c1 = c1 * N / (N - 1)
    if BUG == "c2 dropped":
        c2 = 0.0
    dx = (g - (xhat * c1 + c2)) * rstd
    tl.store(DX + row * stride + cols, dx, mask=mask)
    if BUG == "dw without rstd":
        xhat = tl.where(mask, x - mean, 0.0)
    part_w = (dy * xhat).to(DW.dtype.element_ty)
    part_b = dy.to(DB.dtype.element_ty)
    lock = Lock + group
    count = lock + GROUPS
    rows_w = DW + group * N + cols
    rows_b = DB + group * N + cols
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    filled = tl.load(count)
    tl.debug_barrier()  # every warp has read the count before it changes
    if filled == 0:
        tl.atomic_xchg(count, 1)
    else:
        part_w += tl.load(rows_w, mask=mask)
        part_b += tl.load(rows_b, mask=mask)
    tl.store(rows_w, part_w, mask=mask)
    tl.store(rows_b, part_b, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def column_sums(DW, DB, OutW, OutB, M, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    cols = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    dw = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    db = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, M, ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = (rows[:, None] < M) & (cols[None, :] < N)
        places = rows[:, None] * N + cols[None, :]
        dw += tl.load(DW + places, mask=mask, other=0.0)
        db += tl.load(DB + places, mask=mask, other=0.0)
    tl.store(OutW + cols, tl.sum(dw, axis=0), mask=cols < N)
    tl.store(OutB + cols, tl.sum(db, axis=0), mask=cols < N)


@triton.jit
def softmax_rows(Y, X, stride, M, N, BLOCK: tl.constexpr):
    for row in tl.range(tl.program_id(0), M, tl.num_programs(0)):
        cols = tl.arange(0, BLOCK)
        x = tl.load(X + row * stride + cols, mask=cols < N, other=-float("inf")).to(tl.float32)
        e = tl.exp(x - tl.max(x, axis=0))
        tl.store(Y + row * stride + cols, e / tl.sum(e, axis=0), mask=cols < N)


@triton.jit
def copy_columns(X, Y, N, extra, BLOCK: tl.constexpr):
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + cols, tl.load(X + cols, mask=cols < N + extra), mask=cols < N)


@triton.autotune(
    [triton.Config({"BLOCK": 64}, num_warps=1), triton.Config({"BLOCK": 128}, num_warps=4)], key=["N"]
)
@triton.jit
def tuned_copy(X, Y, N, Used, BLOCK: tl.constexpr):
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Used, BLOCK)
    tl.store(Y + cols, tl.load(X + cols, mask=cols < N), mask=cols < N)


def forward(x, w, b, eps=1e-5, warps=4, block=None):
    rows, columns = x.shape
    y = torch.empty_like(x)
    mean, rstd = (torch.empty(rows, dtype=torch.float32, device="cuda") for _ in range(2))
    block = block or triton.next_power_of_2(columns)
    layer_norm_forward[(rows,)](
        x, y, w, b, mean, rstd, x.stride(0), columns, eps, BLOCK=block, num_warps=warps
    )
    return y, mean, rstd


def backward(dy, x, w, mean, rstd, groups=4, warps=4, bug=None):
    rows, columns = x.shape
    dx = torch.empty_like(x)
    lock = torch.zeros(2 * groups, dtype=torch.int32, device="cuda")
    dw, db = (torch.zeros(groups, columns, dtype=x.dtype, device="cuda") for _ in range(2))
    layer_norm_backward[(rows,)](
        dx, dy, dw, db, x, w, mean, rstd, lock, x.stride(0), columns,
        GROUPS=groups, BLOCK=triton.next_power_of_2(columns), BUG=bug, num_warps=warps,
    )  # fmt: skip
    out_w, out_b = (torch.empty(columns, dtype=x.dtype, device="cuda") for _ in range(2))
    column_sums[(triton.cdiv(columns, 128),)](
        dw, db, out_w, out_b, min(groups, rows), columns, ROWS=32, COLUMNS=128
    )
    return dx, out_w, out_b


def softmax(x, programs=None):
    y = torch.empty_like(x)
    rows, columns = x.shape
    softmax_rows[(programs or rows,)](y, x, x.stride(0), rows, columns, BLOCK=triton.next_power_of_2(columns))
    return y


def inputs(rows, columns, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    make = lambda *shape: torch.randn(*shape, generator=generator).to(dtype)  # noqa: E731
    return make(rows, columns), make(columns), make(columns), make(rows, columns)
