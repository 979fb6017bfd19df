"""Layer normalization of one Triton program a row in two passes, as the Triton tutorial has it, mended.

Forward: every lane adds its share of the row in fp32, the lanes are joined to the mean, and a second sweep
sums (x - mean)^2. Backward: a program takes a fixed chunk of rows and keeps its part of the weight's and
bias's gradients in fp32; a second kernel joins the parts in a fixed order, so there is no lock and no
atomic, and the bits do not change between runs. Rows wider than 64 KB go through the same sums tile by tile.

What the published form gets wrong and this one does not: strides of every tensor, grad_output included;
64-bit offsets; a missing weight or bias; fp32 partial sums; rows = 0, columns = 1 and rows beyond 64 KB.

A row that holds NaN or infinity comes out as NaN, and no other row does. Beyond |x| = 1e15 the sum of
squares may overflow in fp32: the kernel makes no promise there.

The other Triton norms load this file for what they share with it: the layer norms of other variance
algorithms bring a forward kernel or a `moments` of their own and leave the rest as it is here.
"""

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
import triton.language as tl

from verifier import Domain, Trees, subject, tile, tree

SOURCE = "Triton tutorial, Layer Normalization; corrected"

DTYPES = ("float16", "bfloat16", "float32", "float64")
ROW_BYTES = 65536  # a tile is at most this wide, as in the tutorial: more would spill registers
CHUNKS = (128, 1024)  # programs of the backward: enough to fill a device, few enough to keep the parts small
LONGEST_ROW = 2**30  # columns are counted in 32 bits
PARTS = 32  # parts that the last kernel joins in one step


@triton.jit
def divide(numerator, denominator):
    # Triton's `/` is an approximation in fp32, and ptxas may contract it with what follows.
    return numerator / denominator if numerator.dtype == tl.float64 else tl.div_rn(numerator, denominator)


@triton.jit
def root(value):
    return tl.sqrt(value) if value.dtype == tl.float64 else tl.sqrt_rn(value)


@triton.jit
def _moments(x, x_column, columns, count, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr):
    """Two passes over the row at x: its mean, then the biased variance about it."""
    total = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        total += tl.load(x + column * x_column, mask=column < columns, other=0.0).to(ACCUMULATE)
    mean = divide(tl.sum(total, axis=0), count)
    # A masked lane would add mean^2.
    total = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        value = tl.load(x + column * x_column, mask=column < columns, other=0.0).to(ACCUMULATE)
        centred = tl.where(column < columns, value - mean, 0.0)
        total += centred * centred
    return mean, divide(tl.sum(total, axis=0), count)


@triton.jit
def forward(
    x, y, weight, bias, means, rstds, x_row, x_column, weight_step, bias_step, columns, eps,
    MOMENTS: tl.constexpr, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Normalizes one row; MOMENTS is the variance algorithm, a function like `_moments`."""
    row = tl.program_id(0).to(tl.int64)
    x += row * x_row
    y += row * columns
    count = tl.cast(columns, ACCUMULATE)
    if means.dtype.element_ty == tl.float64:
        eps = tl.load(eps)  # a Python float reaches a kernel as fp32
    mean, variance = MOMENTS(x, x_column, columns, count, BLOCK, ACCUMULATE)
    rstd = divide(tl.full((), 1.0, ACCUMULATE), root(variance + eps))
    tl.store(means + row, mean)
    tl.store(rstds + row, rstd)
    # Last sweep: the output.
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        value = tl.load(x + column * x_column, mask=inside, other=0.0).to(ACCUMULATE)
        out = (value - mean) * rstd
        if weight is not None:
            out *= tl.load(weight + column * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
        if bias is not None:
            out += tl.load(bias + column * bias_step, mask=inside, other=0.0).to(ACCUMULATE)
        tl.store(y + column, out, mask=inside)


@triton.jit
def _backward_rows(
    dx, dy, x, weight, means, rstds, parts_dw, parts_db, dy_row, dy_column, x_row, x_column, weight_step,
    rows, columns, chunk, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes `chunk` rows, each within one tile: their dx, and one part of dw and db."""
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK).to(tl.int64)
    inside = column < columns
    count = tl.cast(columns, ACCUMULATE)
    if weight is not None:
        w = tl.load(weight + column * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
    part_dw = tl.zeros((BLOCK,), ACCUMULATE)
    part_db = tl.zeros((BLOCK,), ACCUMULATE)
    for row in range(program * chunk, tl.minimum((program + 1) * chunk, rows)):
        mean = tl.load(means + row)
        rstd = tl.load(rstds + row)
        value = tl.load(x + row * x_row + column * x_column, mask=inside, other=0.0).to(ACCUMULATE)
        d = tl.load(dy + row * dy_row + column * dy_column, mask=inside, other=0.0).to(ACCUMULATE)
        hat = tl.where(inside, (value - mean) * rstd, 0.0)
        g = d
        if weight is not None:
            g = d * w
        c1 = divide(tl.sum(hat * g, axis=0), count)
        c2 = divide(tl.sum(g, axis=0), count)
        tl.store(dx + row * columns + column, (g - (hat * c1 + c2)) * rstd, mask=inside)
        part_dw += d * hat
        part_db += d
    if parts_dw is not None:
        tl.store(parts_dw + program * columns + column, part_dw, mask=inside)
    if parts_db is not None:
        tl.store(parts_db + program * columns + column, part_db, mask=inside)


@triton.jit
def _backward_input(
    dx, dy, x, weight, means, rstds, dy_row, dy_column, x_row, x_column, weight_step, columns,
    BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes one row of any width, tile by tile: its dx."""
    row = tl.program_id(0).to(tl.int64)
    x += row * x_row
    dy += row * dy_row
    count = tl.cast(columns, ACCUMULATE)
    mean = tl.load(means + row)
    rstd = tl.load(rstds + row)
    sum_hat_g = tl.zeros((BLOCK,), ACCUMULATE)
    sum_g = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        value = tl.load(x + column * x_column, mask=inside, other=0.0).to(ACCUMULATE)
        g = tl.load(dy + column * dy_column, mask=inside, other=0.0).to(ACCUMULATE)
        if weight is not None:
            g *= tl.load(weight + column * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
        hat = tl.where(inside, (value - mean) * rstd, 0.0)
        sum_hat_g += hat * g
        sum_g += g
    c1 = divide(tl.sum(sum_hat_g, axis=0), count)
    c2 = divide(tl.sum(sum_g, axis=0), count)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        value = tl.load(x + column * x_column, mask=inside, other=0.0).to(ACCUMULATE)
        g = tl.load(dy + column * dy_column, mask=inside, other=0.0).to(ACCUMULATE)
        if weight is not None:
            g *= tl.load(weight + column * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
        hat = (value - mean) * rstd
        tl.store(dx + row * columns + column, (g - (hat * c1 + c2)) * rstd, mask=inside)


@triton.jit
def _backward_columns(
    dy, x, means, rstds, parts_dw, parts_db, dy_row, dy_column, x_row, x_column, rows, columns, chunk,
    BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes `chunk` rows of one tile of columns: one part of dw and db."""
    program = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    part_dw = tl.zeros((BLOCK,), ACCUMULATE)
    part_db = tl.zeros((BLOCK,), ACCUMULATE)
    for row in range(program * chunk, tl.minimum((program + 1) * chunk, rows)):
        value = tl.load(x + row * x_row + column * x_column, mask=inside, other=0.0).to(ACCUMULATE)
        d = tl.load(dy + row * dy_row + column * dy_column, mask=inside, other=0.0).to(ACCUMULATE)
        hat = (value - tl.load(means + row)) * tl.load(rstds + row)
        part_dw += d * hat
        part_db += d
    if parts_dw is not None:
        tl.store(parts_dw + program * columns + column, part_dw, mask=inside)
    if parts_db is not None:
        tl.store(parts_db + program * columns + column, part_db, mask=inside)


@triton.jit
def _join(parts, out, count, columns, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Joins `count` parts of one tile of columns, always in the same order."""
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((PARTS, BLOCK), parts.dtype.element_ty)
    for start in range(0, count, PARTS):
        part = start + tl.arange(0, PARTS).to(tl.int64)
        inside = (part[:, None] < count) & (column[None, :] < columns)
        total += tl.load(parts + part[:, None] * columns + column[None, :], mask=inside, other=0.0)
    tl.store(out + column, tl.sum(total, axis=0), mask=column < columns)


def join_parts(parts, out, count, columns):
    _join[(triton.cdiv(columns, 128),)](parts, out, count, columns, PARTS=PARTS, BLOCK=128)


def on(tensor):
    """Triton launches on the current device, which need not be the tensor's."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


def row_tile(columns, dtype):
    block = min(ROW_BYTES // dtype.itemsize, triton.next_power_of_2(columns))
    return block, min(max(block // 256, 1), 8)


def chunks(rows, columns):
    """Programs of the backward and rows of each, from the shape alone: no device may change the bits."""
    programs = min(rows, max(CHUNKS[0], min(CHUNKS[1], 2**20 // columns)))
    chunk = triton.cdiv(rows, programs)
    return triton.cdiv(rows, chunk), chunk


def accumulator(dtype):
    return (torch.float64, tl.float64) if dtype == torch.float64 else (torch.float32, tl.float32)


def step(vector):
    return 0 if vector is None else vector.stride(0)


def scalar(value, like):
    """A Python float reaches a kernel as fp32: doubles get theirs through memory."""
    if like.dtype != torch.float64:
        return value
    return torch.full((1,), value, dtype=like.dtype, device=like.device)


@dataclass(frozen=True, kw_only=True)
class Design:
    """What tells one layer norm from another: how the forward sees a row, and how a row is tiled.

    tile: (columns of a tile, warps) for so many columns of a dtype, in the forward and in the backward.
    """

    forward: Any = forward
    constants: Mapping[str, Any] = field(default_factory=dict)
    tile: Callable[[int, torch.dtype], tuple[int, int]] = row_tile
    longest_row: int = LONGEST_ROW


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, columns, eps, design):
        rows = input.numel() // columns if columns else 0
        statistics, accumulate = accumulator(input.dtype)
        output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
        mean = torch.empty(rows, dtype=statistics, device=input.device)
        rstd = torch.empty_like(mean)
        x = input.reshape(rows, columns)  # a view where the strides allow it
        w, b = (None if vector is None else vector.reshape(columns) for vector in (weight, bias))
        if rows:
            block, warps = design.tile(columns, input.dtype)
            with on(input):
                design.forward[(rows,)](
                    x, output, w, b, mean, rstd, *x.stride(), step(w), step(b), columns, scalar(eps, input),
                    **design.constants, BLOCK=block, ACCUMULATE=accumulate, num_warps=warps,
                )  # fmt: skip
        ctx.save_for_backward(input, weight, mean, rstd)
        ctx.tile = design.tile
        ctx.parameters = [
            None if vector is None else (vector.shape, vector.dtype) for vector in (weight, bias)
        ]
        ctx.mark_non_differentiable(mean, rstd)
        return output, mean, rstd

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output, _grad_mean, _grad_rstd):
        x, weight, mean, rstd = ctx.saved_tensors
        rows = mean.numel()
        columns = x.numel() // rows if rows else 0
        grad_input = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        grad_weight, grad_bias = (
            torch.zeros(like[0], dtype=like[1], device=x.device) if needed else None
            for like, needed in zip(ctx.parameters, ctx.needs_input_grad[1:3], strict=True)
        )
        if not rows:
            return grad_input, grad_weight, grad_bias, None, None, None
        x, dy = x.reshape(rows, columns), grad_output.reshape(rows, columns)
        programs, chunk = chunks(rows, columns)
        parts_dw, parts_db = (
            None if out is None else mean.new_empty(programs, columns) for out in (grad_weight, grad_bias)
        )
        with on(x):
            plan = (programs, chunk, *ctx.tile(columns, x.dtype))
            _launch_backward(grad_input, dy, x, weight, mean, rstd, parts_dw, parts_db, *plan)
            for parts, out in ((parts_dw, grad_weight), (parts_db, grad_bias)):
                if out is not None:
                    join_parts(parts, out, programs, columns)
        return grad_input, grad_weight, grad_bias, None, None, None


def _launch_backward(
    grad_input, dy, x, weight, mean, rstd, parts_dw, parts_db, programs, chunk, block, warps
):  # fmt: skip
    rows, columns = x.shape
    w = None if weight is None else weight.reshape(columns)
    accumulate = accumulator(x.dtype)[1]
    strides = (*dy.stride(), *x.stride())
    if columns <= block:
        _backward_rows[(programs,)](
            grad_input, dy, x, w, mean, rstd, parts_dw, parts_db, *strides, step(w), rows, columns, chunk,
            BLOCK=block, ACCUMULATE=accumulate, num_warps=warps,
        )  # fmt: skip
        return
    _backward_input[(rows,)](
        grad_input, dy, x, w, mean, rstd, *strides, step(w), columns,
        BLOCK=block, ACCUMULATE=accumulate, num_warps=warps,
    )  # fmt: skip
    if parts_dw is not None or parts_db is not None:
        _backward_columns[(triton.cdiv(columns, 128), programs)](
            dy, x, mean, rstd, parts_dw, parts_db, *strides, rows, columns, chunk,
            BLOCK=128, ACCUMULATE=accumulate,
        )  # fmt: skip


def refuse_dtype(op, input):
    if str(input.dtype).removeprefix("torch.") not in DTYPES:
        raise ValueError(f"{op} takes {', '.join(DTYPES)}, not {input.dtype}.")


def refuse_vectors(input, shape, **vectors):
    """Raises where weight, bias or a statistic has another shape or device than the input gives it."""
    for name, vector in vectors.items():
        if vector is not None and tuple(vector.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(vector.shape)}, expected {shape}.")
        if vector is not None and vector.device != input.device:
            raise ValueError(f"{name} is on {vector.device}, input on {input.device}.")


def normalized_columns(op, input, normalized_shape, longest_row=LONGEST_ROW, **vectors):
    """Returns the number of columns, or raises before the first launch what the kernels cannot take."""
    shape = tuple(normalized_shape)
    refuse_dtype(op, input)
    if not shape or tuple(input.shape[-len(shape) :]) != shape:
        raise ValueError(f"normalized_shape {shape} is not the end of shape {tuple(input.shape)}.")
    refuse_vectors(input, shape, **vectors)
    if math.prod(shape) > longest_row:
        raise ValueError(f"Rows of more than {longest_row} columns are not supported.")
    return math.prod(shape)


def layer_norm_by(design, input, normalized_shape, weight, bias, eps):
    """Normalizes the last dimensions of `input`: the body of every Triton layer norm."""
    columns = normalized_columns(
        "layer_norm", input, normalized_shape, design.longest_row, weight=weight, bias=bias
    )  # fmt: skip
    return _LayerNorm.apply(input, weight, bias, columns, float(eps), design)


def grouped_depth(columns, tile_of):
    """Additions that a leaf of a sum meets at most, tiles being the same in every dtype."""
    block, warps = tile_of(columns)
    return tile(block=block, threads=32 * warps, element_bytes=2).depth(columns)


def row_depth(columns):
    """Additions that a leaf of a row's sum meets at most, in whichever dtype."""
    sizes = [getattr(torch, dtype) for dtype in DTYPES]
    tiles = [(*row_tile(columns, dtype), dtype.itemsize) for dtype in sizes]
    return max(tile(block=b, threads=32 * w, element_bytes=size).depth(columns) for b, w, size in tiles)


def column_depth(rows):
    """Additions that a leaf of a column's sum meets at most: within its chunk, then over the parts."""
    return triton.cdiv(rows, CHUNKS[0]) - 1 + triton.cdiv(min(rows, CHUNKS[1]), PARTS) - 1 + PARTS - 1


# ---- The subject ----

DESIGN = Design(constants={"MOMENTS": _moments})
TREES = Trees(
    statistics=tree(depth=row_depth),
    row_gradients=tree(depth=row_depth),
    columns=tree(depth=column_depth),
)
GUARANTEES = frozenset(
    {"determinism", "batch_invariance", "gradgradcheck", "special_values", "layouts", "large_offsets"}
)


@subject(
    op="layer_norm",
    language="triton",
    variance="two_pass",
    accumulates="float32",
    dtypes=DTYPES,
    trees=TREES,
    mean_contraction="none",  # the mean ends in an IEEE division, which no compiler contracts
    divide_by_n="division",
    # Squares and their sums stay finite, and the theorem holds for every order of summation.
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    returns=("output", "mean", "rstd"),
    guarantees=GUARANTEES,
)
def layer_norm_two_pass_triton(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    return layer_norm_by(DESIGN, input, normalized_shape, weight, bias, eps)
