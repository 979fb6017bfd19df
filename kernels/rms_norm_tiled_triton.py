"""Root-mean-square normalization with whole rows in registers, one long or several short ones a program.

Forward, a row is read once. Backward, a fixed number of programs takes tiles of rows in turns, the next tiles
on their way while one is computed, and keeps its part of the weight's gradient in fp32; a last kernel joins
the parts in a fixed order. Of few rows other programs of the same launch sum the columns. Beyond 8192 columns
two programs share a row. There is no lock and no atomic, and no device changes the bits.
Rows that fit into no tile go through the kernels of rms_norm_triton.py, which take any width.

A row that holds NaN comes out as NaN. Beyond |x| = 1e15 the sum of squares may overflow in fp32: the kernel
makes no promise there.
"""

from pathlib import Path

import torch
import triton
import triton.language as tl

from verifier import Domain, Source, Trees, load, subject, tree

SOURCE = Source(
    title="LeetGPU exercise 07: the Norm series",
    changed="our own: its RMSNorm in tiles of rows, with every stride and rank and a backward",
)

tiles = load(Path(__file__).with_name("row_tiles_skeleton_triton.py")).module
wide = load(Path(__file__).with_name("rms_norm_triton.py")).module
skeleton = tiles.skeleton
divide, product, root = skeleton.divide, skeleton.product, skeleton.root
step, scalar = skeleton.step, skeleton.scalar
entries = tiles.entries

# ---- Forward: one tile a program ----


@triton.jit
def _forward(
    x, y, weight, rstds, x_row, weight_step, rows, columns, eps,
    TALL: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    column = tl.arange(0, BLOCK).to(tl.int64)
    there, within = row < rows, column < columns
    inside = there[:, None] & within[None, :]
    if rstds.dtype.element_ty == tl.float64:
        eps = tl.load(eps)  # a Python float reaches a kernel as fp32
    place = x + row[:, None] * x_row + column[None, :]
    value = tl.load(place, mask=inside, other=0.0).to(ACCUMULATE)
    if EARLY and weight is not None:
        w = entries(weight, column, weight_step, within)
    mean_square = divide(tl.sum(product(value, value), axis=1), tl.cast(columns, ACCUMULATE))
    rstd = divide(tl.full((TALL,), 1.0, ACCUMULATE), root(mean_square + eps))
    tl.store(rstds + row, rstd, mask=there)
    out = value * rstd[:, None]
    if weight is not None:
        if not EARLY:
            w = entries(weight, column, weight_step, within)
        out *= w.to(ACCUMULATE)
    tl.store(y + row[:, None] * columns + column[None, :], out, mask=inside)


# ---- Backward: a fixed number of programs, each some of the tiles ----


@triton.jit
def _rows(
    dx, dy, x, weight, rstds, parts_dw, dy_row, x_row, weight_step, rows, columns, program, programs, piece,
    TALL: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr, AHEAD: tl.constexpr,
    ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes every so many tiles of rows: their dx, and one part of dw."""
    column = piece * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    within = column < columns
    count = tl.cast(columns, ACCUMULATE)
    if weight is not None:
        w = tl.load(weight + column * weight_step, mask=within, other=0.0).to(ACCUMULATE)[None, :]
    part_dw = tl.zeros((TALL, BLOCK), ACCUMULATE)
    for start in tl.range(program * TALL, rows, programs * TALL, num_stages=AHEAD):
        row = start + tl.arange(0, TALL)
        there = row < rows
        inside = there[:, None] & within[None, :]
        rstd = tl.load(rstds + row, mask=there, other=0.0)
        place = row[:, None] * x_row + column[None, :]
        value = tl.load(x + place, mask=inside, other=0.0).to(ACCUMULATE)
        place = row[:, None] * dy_row + column[None, :]
        d = tl.load(dy + place, mask=inside, other=0.0).to(ACCUMULATE)
        hat = value * rstd[:, None]
        g = d
        if weight is not None:
            g = product(d, w)
        if PIECES == 2:  # the row's other piece, for its sum alone
            other = (1 - piece) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
            there_too = there[:, None] & (other < columns)[None, :]
            place = row[:, None] * x_row + other[None, :]
            other_hat = tl.load(x + place, mask=there_too, other=0.0).to(ACCUMULATE) * rstd[:, None]
            place = row[:, None] * dy_row + other[None, :]
            other_g = tl.load(dy + place, mask=there_too, other=0.0).to(ACCUMULATE)
            if weight is not None:
                place = weight + other[None, :] * weight_step
                other_w = tl.load(place, mask=(other < columns)[None, :], other=0.0).to(ACCUMULATE)
                other_g = product(other_g, other_w)
            hat_g = tl.fma(tl.where(there_too, other_hat, 0.0), other_g, product(hat, g))
        else:
            hat_g = product(hat, g)
        c1 = divide(tl.sum(hat_g, axis=1), count)
        out = tl.fma(-hat, c1[:, None], g) * rstd[:, None]
        tl.store(dx + row[:, None] * columns + column[None, :], out, mask=inside)
        part_dw += d * hat
    if parts_dw is not None:
        tl.store(parts_dw + program * columns + column, tl.sum(part_dw, axis=0), mask=within)


@triton.jit
def _backward(
    dx, dy, x, weight, rstds, parts_dw, dy_row, x_row, weight_step, rows, columns,
    TALL: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr, AHEAD: tl.constexpr,
    ACCUMULATE: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    _rows(
        dx, dy, x, weight, rstds, parts_dw, dy_row, x_row, weight_step, rows, columns, program,
        tl.num_programs(0), tl.program_id(1), TALL, BLOCK, PIECES, AHEAD, ACCUMULATE,
    )  # fmt: skip


# ---- Backward of few rows: other programs of the same launch sum the columns ----


@triton.jit
def _columns(
    dy, x, rstds, dw, dy_row, x_row, rows, columns, tile,
    TALL: tl.constexpr, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes all rows of one tile of columns: dw."""
    column = tile * BLOCK + tl.arange(0, BLOCK)
    within = column < columns
    part_dw = tl.zeros((TALL, BLOCK), ACCUMULATE)
    for start in range(0, rows, TALL):
        row = start + tl.arange(0, TALL).to(tl.int64)
        there = row < rows
        inside = there[:, None] & within[None, :]
        rstd = tl.load(rstds + row, mask=there, other=0.0)
        place = row[:, None] * x_row + column[None, :]
        value = tl.load(x + place, mask=inside, other=0.0).to(ACCUMULATE)
        place = row[:, None] * dy_row + column[None, :]
        d = tl.load(dy + place, mask=inside, other=0.0).to(ACCUMULATE)
        part_dw += d * (value * rstd[:, None])
    tl.store(dw + column, tl.sum(part_dw, axis=0), mask=within)


@triton.jit
def _backward_at_once(
    dx, dy, x, weight, rstds, dw, dy_row, x_row, weight_step, rows, columns, programs,
    TALL: tl.constexpr, BLOCK: tl.constexpr, SUMMED_TALL: tl.constexpr, SUMMED: tl.constexpr,
    ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """The first programs have a tile of rows each, all others a tile of columns."""
    program = tl.program_id(0).to(tl.int64)
    if program < programs:
        _rows(
            dx, dy, x, weight, rstds, None, dy_row, x_row, weight_step, rows, columns, program, programs, 0,
            TALL, BLOCK, 1, 1, ACCUMULATE,
        )  # fmt: skip
    elif dw is not None:
        tile = program - programs
        _columns(dy, x, rstds, dw, dy_row, x_row, rows, columns, tile, SUMMED_TALL, SUMMED, ACCUMULATE)


# ---- Launches ----


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, columns, eps):
        rows = input.numel() // columns if columns else 0
        statistics, accumulate = skeleton.accumulator(input.dtype)
        output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
        rstd = torch.empty(rows, dtype=statistics, device=input.device)
        x = tiles.as_rows(input.reshape(rows, columns))
        w = None if weight is None else weight.reshape(columns)
        if rows:
            tall, block, warps, early, registers = tiles.forward_tile(rows, columns, input.dtype)
            with skeleton.on(input):
                _forward[(triton.cdiv(rows, tall),)](
                    x, output, w, rstd, x.stride(0), step(w), rows, columns, scalar(eps, input),
                    TALL=tall, BLOCK=block, EARLY=early, ACCUMULATE=accumulate,
                    num_warps=warps, maxnreg=registers,
                )  # fmt: skip
        ctx.save_for_backward(input, weight, rstd)
        ctx.mark_non_differentiable(rstd)
        return output, rstd

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output, _grad_rstd):
        x, weight, rstd = ctx.saved_tensors
        rows = rstd.numel()
        columns = x.numel() // rows if rows else 0
        grad_input = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        grad_weight = parts = None
        if ctx.needs_input_grad[1]:
            grad_weight = skeleton.sum_over(rows, weight.shape, weight.dtype, x.device)
        if not rows:
            return grad_input, grad_weight, None, None
        x, dy = (tiles.as_rows(tensor.reshape(rows, columns)) for tensor in (x, grad_output))
        tall, block, ahead, warps, pieces = tiles.backward_tile(rows, columns, x.dtype)
        fits = pieces <= tiles.PIECES
        if tiles.sums_at_once(rows, columns, pieces):
            w = None if weight is None else weight.reshape(columns)
            programs, (summed_tall, summed) = triton.cdiv(rows, tall), tiles.columns_at_once(rows, columns)
            summing = 0 if grad_weight is None else triton.cdiv(columns, summed)
            with skeleton.on(x):
                _backward_at_once[(programs + summing,)](
                    grad_input, dy, x, w, rstd, grad_weight, dy.stride(0), x.stride(0), step(w), rows,
                    columns, programs, TALL=tall, BLOCK=block, SUMMED_TALL=summed_tall, SUMMED=summed,
                    ACCUMULATE=skeleton.accumulator(x.dtype)[1], num_warps=warps,
                )  # fmt: skip
            return grad_input, grad_weight, None, None
        if fits:
            programs = tiles.backward_programs(rows, tall, warps, pieces)
        else:
            programs, chunk = skeleton.chunks(rows, columns)
        if grad_weight is not None:
            parts = rstd.new_empty(programs, columns)
        with skeleton.on(x):
            if fits:
                w = None if weight is None else weight.reshape(columns)
                _backward[(programs, pieces)](
                    grad_input, dy, x, w, rstd, parts, dy.stride(0), x.stride(0), step(w), rows, columns,
                    TALL=tall, BLOCK=block, PIECES=pieces, AHEAD=ahead,
                    ACCUMULATE=skeleton.accumulator(x.dtype)[1], num_warps=warps,
                )  # fmt: skip
            else:
                wide.backward_in_tiles(grad_input, dy, x, weight, rstd, parts, programs, chunk)
            skeleton.join_parts([(parts, grad_weight)], programs, columns)
        return grad_input, grad_weight, None, None


# ---- The subject ----


def _backward_depth(columns):
    """Additions that a leaf of a row's sum meets at most in the backward, in a tile or beyond."""
    return max(tiles.backward_depth(columns), skeleton.row_depth(columns))


def _column_depth(rows):
    """Additions that a leaf of a column's sum meets at most, in a tile or beyond."""
    return max(tiles.column_depth(rows), skeleton.column_depth(rows))


@subject(
    op="rms_norm",
    language="triton",
    source=SOURCE,
    variance="rms",
    accumulates="float32",
    dtypes=skeleton.DTYPES,
    trees=Trees(
        statistics=tree(depth=tiles.forward_depth),
        row_gradients=tree(depth=_backward_depth),
        columns=tree(depth=_column_depth),
    ),
    mean_contraction="none",  # the mean square ends in an IEEE division, which no compiler contracts
    divide_by_n="division",
    # The sum of squares stays finite.
    domain=Domain(max_abs=1e15, max_columns=tiles.LONGEST_ROW, parameter_dtypes=skeleton.PARAMETER_DTYPES),
    returns=("output", "rstd"),
    guarantees=skeleton.GUARANTEES,
    extents=((67, 8193),),  # more tiles than programs of the backward
)
def rms_norm_tiled_triton(input, normalized_shape, weight=None, eps=None):
    columns = skeleton.normalized_columns(
        "rms_norm", input, normalized_shape, tiles.LONGEST_ROW, weight=weight
    )  # fmt: skip
    if eps is None:  # as PyTorch does
        eps = torch.finfo(skeleton.accumulator(input.dtype)[0]).eps
    return _RMSNorm.apply(input, weight, columns, float(eps))
