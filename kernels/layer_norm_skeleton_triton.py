"""Layer normalization in Triton around any variance algorithm, one program a row: no subject.

Forward: a variance algorithm, MOMENTS, finds the row's mean and variance; a further sweep writes the output.
Backward: a program takes a fixed chunk of rows and keeps its part of the weight's and bias's gradients in
fp32; a second kernel joins the parts in a fixed order, so there is no lock and no atomic, and the bits do not
change between runs. Rows wider than 64 KB go through the same sums tile by tile.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from verifier import load

skeleton = load(Path(__file__).with_name("row_norm_skeleton_triton.py")).module
divide, root = skeleton.divide, skeleton.root
step, scalar, sums = skeleton.step, skeleton.scalar, skeleton.sums


@triton.jit
def forward_in_tiles(
    x, y, weight, bias, means, rstds, x_row, x_column, weight_step, bias_step, columns, eps,
    MOMENTS: tl.constexpr, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Normalizes one row; MOMENTS is the variance algorithm, a function of the row to both."""
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


@triton.jit(do_not_specialize=["rows", "chunk"])
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
        along_hat, plain = sums(hat * g, g, axis=0)
        c1, c2 = divide(along_hat, count), divide(plain, count)
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
    along_hat, plain = sums(sum_hat_g, sum_g, axis=0)
    c1, c2 = divide(along_hat, count), divide(plain, count)
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


def backward_in_one_tile(
    grad_input, dy, x, weight, mean, rstd, parts_dw, parts_db, programs, chunk, block, warps
):  # fmt: skip
    """Launches the backward of rows that fit a tile."""
    rows, columns = x.shape
    w = None if weight is None else weight.reshape(columns)
    _backward_rows[(programs,)](
        grad_input, dy, x, w, mean, rstd, parts_dw, parts_db, *dy.stride(), *x.stride(), step(w), rows,
        columns, chunk, BLOCK=block, ACCUMULATE=skeleton.accumulator(x.dtype)[1], num_warps=warps,
    )  # fmt: skip


def backward_in_tiles(
    grad_input, dy, x, weight, mean, rstd, parts_dw, parts_db, programs, chunk, block, warps
):  # fmt: skip
    """Launches the backward of rows of any width."""
    rows, columns = x.shape
    if columns <= block:
        backward_in_one_tile(
            grad_input, dy, x, weight, mean, rstd, parts_dw, parts_db, programs, chunk, block, warps
        )
        return
    w = None if weight is None else weight.reshape(columns)
    accumulate = skeleton.accumulator(x.dtype)[1]
    strides = (*dy.stride(), *x.stride())
    _backward_input[(rows,)](
        grad_input, dy, x, w, mean, rstd, *strides, step(w), columns,
        BLOCK=block, ACCUMULATE=accumulate, num_warps=warps,
    )  # fmt: skip
    if parts_dw is not None or parts_db is not None:
        _backward_columns[(triton.cdiv(columns, 128), programs)](
            dy, x, mean, rstd, parts_dw, parts_db, *strides, rows, columns, chunk,
            BLOCK=128, ACCUMULATE=accumulate,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Design:
    """What tells one layer norm from another: how the forward sees a row, and how a row is tiled.

    backward: what launches the backward of rows that `tile` was asked for.
    tile: (columns of a tile, warps) for so many columns of a dtype, in the forward and in the backward.
    """

    forward: Any
    backward: Callable[..., None]
    constants: Mapping[str, Any] = field(default_factory=dict)
    tile: Callable[[int, torch.dtype], tuple[int, int]] = skeleton.row_tile
    longest_row: int = skeleton.LONGEST_ROW


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, columns, eps, design):
        rows = input.numel() // columns if columns else 0
        statistics, accumulate = skeleton.accumulator(input.dtype)
        output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
        mean = torch.empty(rows, dtype=statistics, device=input.device)
        rstd = torch.empty_like(mean)
        x = input.reshape(rows, columns)  # a view where the strides allow it
        w, b = (None if vector is None else vector.reshape(columns) for vector in (weight, bias))
        if rows:
            block, warps = design.tile(columns, input.dtype)
            with skeleton.on(input):
                design.forward[(rows,)](
                    x, output, w, b, mean, rstd, *x.stride(), step(w), step(b), columns, scalar(eps, input),
                    **design.constants, BLOCK=block, ACCUMULATE=accumulate, num_warps=warps,
                )  # fmt: skip
        ctx.save_for_backward(input, weight, mean, rstd)
        ctx.design = design
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
            skeleton.sum_over(rows, *like, x.device) if needed else None
            for like, needed in zip(ctx.parameters, ctx.needs_input_grad[1:3], strict=True)
        )
        if not rows:
            return grad_input, grad_weight, grad_bias, None, None, None
        x, dy = x.reshape(rows, columns), grad_output.reshape(rows, columns)
        programs, chunk = skeleton.chunks(rows, columns)
        parts_dw, parts_db = (
            None if out is None else mean.new_empty(programs, columns) for out in (grad_weight, grad_bias)
        )
        with skeleton.on(x):
            plan = (programs, chunk, *ctx.design.tile(columns, x.dtype))
            ctx.design.backward(grad_input, dy, x, weight, mean, rstd, parts_dw, parts_db, *plan)
            skeleton.join_parts(((parts_dw, grad_weight), (parts_db, grad_bias)), programs, columns)
        return grad_input, grad_weight, grad_bias, None, None, None


def layer_norm_by(design, input, normalized_shape, weight, bias, eps):
    """Normalizes the last dimensions of `input`: the body of every Triton layer norm."""
    columns = skeleton.normalized_columns(
        "layer_norm", input, normalized_shape, design.longest_row, weight=weight, bias=bias
    )  # fmt: skip
    return _LayerNorm.apply(input, weight, bias, columns, float(eps), design)
