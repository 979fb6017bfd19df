"""Layer normalization that keeps the mean as two numbers: right to a few ulp however large the mean is.

A mean that is rounded to fp32 is off by up to u |mean|, and so is every x - mean: at a mean of 1e6 and a
standard deviation of 1 a correct layer norm errs by 0.05. Here the mean h that comes first is subtracted,
and what it lacks, l = mean(x - h), is subtracted from the rest: y = ((x - h) - l) * rstd * weight + bias.
The variance mean((x - h)^2) - l^2 is corrected by the same l. The backward pass reads h and l, so that its
gradients do not feel the mean either.

Forward, a program has whole rows in registers, one long or several short ones, so l takes no further sweep
over memory. Backward, a fixed number of programs takes tiles of rows in turns, the next tiles on their way
while one is computed, and keeps its part of the weight's and bias's gradients in fp32; a last kernel joins
the parts in a fixed order. Of few rows other programs of the same launch sum the columns. Beyond 8192 columns
two programs share a row; beyond 16384, rows go tile by tile, and the gradients of weight and bias through a
kernel of their own. There is no lock and no atomic, and no device changes the bits. Rows beyond the largest
block are refused.
"""

from pathlib import Path

import torch
import triton
import triton.language as tl

from verifier import Domain, Source, Trees, load, subject, tree

SOURCE = Source(
    title="Algorithms for computing the sample variance: analysis and recommendations",
    author="Tony F. Chan, Gene H. Golub, Randall J. LeVeque",
    url="https://doi.org/10.1080/00031305.1983.10483115",
    changed="our own in Triton: the correction of its two-pass algorithm is kept, and subtracted as well",
)

tiles = load(Path(__file__).with_name("row_tiles_skeleton_triton.py")).module
skeleton = tiles.skeleton
divide, product, root = skeleton.divide, skeleton.product, skeleton.root
step, scalar, sums = skeleton.step, skeleton.scalar, skeleton.sums
entries, mean_of = tiles.entries, tiles.mean_of

# ---- Forward: a program has one long row or several short ones ----


@triton.jit
def _forward(
    x, residual, y, weight, bias, highs, lows, means, rstds, x_row, residual_row, weight_step, bias_step,
    rows, columns, eps,
    TALL: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, EARLY: tl.constexpr,
    ACCUMULATE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    column = tl.arange(0, BLOCK).to(tl.int64)
    there, within = row < rows, column < columns
    inside = there[:, None] & within[None, :]
    if means.dtype.element_ty == tl.float64:
        eps = tl.load(eps)  # a Python float reaches a kernel as fp32
    place = x + row[:, None] * x_row + column[None, :]
    value = tl.load(place, mask=inside, other=0.0).to(ACCUMULATE)
    if residual is not None:
        place = residual + row[:, None] * residual_row + column[None, :]
        value += tl.load(place, mask=inside, other=0.0).to(ACCUMULATE)
    if EARLY and weight is not None:
        w = entries(weight, column, weight_step, within)
    if EARLY and bias is not None:
        b = entries(bias, column, bias_step, within)
    high = mean_of(tl.sum(value, axis=1), columns, BLOCK, WHOLE)
    deviation = tl.where(inside, value - high[:, None], 0.0)  # a masked lane would add -high
    total, squares = sums(deviation, product(deviation, deviation), axis=1)
    low = mean_of(total, columns, BLOCK, WHOLE)
    variance = mean_of(squares, columns, BLOCK, WHOLE) - product(low, low)
    variance = tl.where(variance < 0.0, 0.0, variance)  # keeps NaN, which a maximum would not
    rstd = divide(tl.full((TALL,), 1.0, ACCUMULATE), root(variance + eps))
    if highs is not None:
        tl.store(highs + row, high, mask=there)
        tl.store(lows + row, low, mask=there)
    tl.store(means + row, high + low, mask=there)
    tl.store(rstds + row, rstd, mask=there)
    out, factor = deviation - low[:, None], rstd[:, None]
    if weight is not None:
        if not EARLY:
            w = entries(weight, column, weight_step, within)
        out, factor = out * factor, w.to(ACCUMULATE)
    if bias is not None:
        if not EARLY:
            b = entries(bias, column, bias_step, within)
        out = tl.fma(out, factor, b.to(ACCUMULATE))
    else:
        out *= factor
    tl.store(y + row[:, None] * columns + column[None, :], out, mask=inside)


# ---- Backward of rows of one tile, or of two: a fixed number of programs, each some of the tiles ----


@triton.jit
def _rows(
    dx, dy, x, weight, highs, lows, rstds, parts_dw, parts_db, dy_row, x_row, weight_step, rows, columns,
    program, programs, piece, TALL: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr,
    AHEAD: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes every so many tiles of rows: their dx, and one part of dw and db."""
    column = piece * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    within = column < columns
    count = tl.cast(columns, ACCUMULATE)
    if weight is not None:
        w = tl.load(weight + column * weight_step, mask=within, other=0.0).to(ACCUMULATE)[None, :]
    part_dw = tl.zeros((TALL, BLOCK), ACCUMULATE)
    part_db = tl.zeros((TALL, BLOCK), ACCUMULATE)
    for start in tl.range(program * TALL, rows, programs * TALL, num_stages=AHEAD):
        row = start + tl.arange(0, TALL)
        there = row < rows
        inside = there[:, None] & within[None, :]
        high = tl.load(highs + row, mask=there, other=0.0)
        low = tl.load(lows + row, mask=there, other=0.0)
        rstd = tl.load(rstds + row, mask=there, other=0.0)
        place = row[:, None] * x_row + column[None, :]
        value = tl.load(x + place, mask=inside, other=0.0).to(ACCUMULATE)
        place = row[:, None] * dy_row + column[None, :]
        d = tl.load(dy + place, mask=inside, other=0.0).to(ACCUMULATE)
        hat = tl.where(inside, ((value - high[:, None]) - low[:, None]) * rstd[:, None], 0.0)
        g = d
        if weight is not None:
            g = product(d, w)
        sum_g = g
        if PIECES == 2:  # the row's other piece, for its sums alone
            other = (1 - piece) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
            there_too = there[:, None] & (other < columns)[None, :]
            place = row[:, None] * x_row + other[None, :]
            value = tl.load(x + place, mask=there_too, other=0.0).to(ACCUMULATE)
            place = row[:, None] * dy_row + other[None, :]
            other_g = tl.load(dy + place, mask=there_too, other=0.0).to(ACCUMULATE)
            if weight is not None:
                place = weight + other[None, :] * weight_step
                other_w = tl.load(place, mask=(other < columns)[None, :], other=0.0).to(ACCUMULATE)
                other_g = product(other_g, other_w)
            other_hat = ((value - high[:, None]) - low[:, None]) * rstd[:, None]
            hat_g = tl.fma(tl.where(there_too, other_hat, 0.0), other_g, product(hat, g))
            sum_g += other_g
        else:
            hat_g = product(hat, g)
        along_hat, plain = sums(hat_g, sum_g, axis=1)
        c1, c2 = divide(along_hat, count), divide(plain, count)
        out = tl.fma(hat, c1[:, None], c2[:, None])
        out = (g - out if weight is None else tl.fma(d, w, -out)) * rstd[:, None]
        tl.store(dx + row[:, None] * columns + column[None, :], out, mask=inside)
        part_dw += d * hat
        part_db += d
    part_dw, part_db = sums(part_dw, part_db, axis=0)
    if parts_dw is not None:
        tl.store(parts_dw + program * columns + column, part_dw, mask=within)
    if parts_db is not None:
        tl.store(parts_db + program * columns + column, part_db, mask=within)


@triton.jit
def _backward(
    dx, dy, x, weight, highs, lows, rstds, parts_dw, parts_db, dy_row, x_row, weight_step, rows, columns,
    TALL: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr, AHEAD: tl.constexpr,
    ACCUMULATE: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    _rows(
        dx, dy, x, weight, highs, lows, rstds, parts_dw, parts_db, dy_row, x_row, weight_step, rows, columns,
        program, tl.num_programs(0), tl.program_id(1), TALL, BLOCK, PIECES, AHEAD, ACCUMULATE,
    )  # fmt: skip


# ---- Backward of longer rows, and of few ----


@triton.jit
def _backward_input(
    dx, dy, x, weight, highs, lows, rstds, dy_row, x_row, weight_step, columns,
    BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes one row, tile by tile: its dx. The second sweep finds the row in the cache."""
    row = tl.program_id(0).to(tl.int64)
    x += row * x_row
    dy += row * dy_row
    count = tl.cast(columns, ACCUMULATE)
    high, low, rstd = tl.load(highs + row), tl.load(lows + row), tl.load(rstds + row)
    sum_hat_g = tl.zeros((BLOCK,), ACCUMULATE)
    sum_g = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        value = tl.load(x + column, mask=inside, other=0.0).to(ACCUMULATE)
        g = tl.load(dy + column, mask=inside, other=0.0).to(ACCUMULATE)
        if weight is not None:
            g *= tl.load(weight + column * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
        hat = tl.where(inside, ((value - high) - low) * rstd, 0.0)
        sum_hat_g += hat * g
        sum_g += g
    along_hat, plain = sums(sum_hat_g, sum_g, axis=0)
    c1, c2 = divide(along_hat, count), divide(plain, count)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        value = tl.load(x + column, mask=inside, other=0.0).to(ACCUMULATE)
        g = tl.load(dy + column, mask=inside, other=0.0).to(ACCUMULATE)
        if weight is not None:
            g *= tl.load(weight + column * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
        hat = ((value - high) - low) * rstd
        tl.store(dx + row * columns + column, (g - (hat * c1 + c2)) * rstd, mask=inside)


@triton.jit
def _columns(
    dy, x, highs, lows, rstds, parts_dw, parts_db, dy_row, x_row, rows, columns, chunk, tile, program,
    TALL: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes `chunk` rows of one tile of columns: one part of dw and db."""
    column = tile.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    within = column < columns
    end = tl.minimum((program + 1) * chunk, rows)
    part_dw = tl.zeros((TALL, BLOCK), ACCUMULATE)
    part_db = tl.zeros((TALL, BLOCK), ACCUMULATE)
    for start in tl.range(program * chunk, end, TALL, num_stages=AHEAD):
        row = start + tl.arange(0, TALL).to(tl.int64)
        there = row < end
        inside = there[:, None] & within[None, :]
        high = tl.load(highs + row, mask=there, other=0.0)
        low = tl.load(lows + row, mask=there, other=0.0)
        rstd = tl.load(rstds + row, mask=there, other=0.0)
        place = row[:, None] * x_row + column[None, :]
        value = tl.load(x + place, mask=inside, other=0.0).to(ACCUMULATE)
        place = row[:, None] * dy_row + column[None, :]
        d = tl.load(dy + place, mask=inside, other=0.0).to(ACCUMULATE)
        part_dw += d * (((value - high[:, None]) - low[:, None]) * rstd[:, None])
        part_db += d
    part_dw, part_db = sums(part_dw, part_db, axis=0)
    if parts_dw is not None:
        tl.store(parts_dw + program * columns + column, part_dw, mask=within)
    if parts_db is not None:
        tl.store(parts_db + program * columns + column, part_db, mask=within)


@triton.jit
def _backward_columns(
    dy, x, highs, lows, rstds, parts_dw, parts_db, dy_row, x_row, rows, columns, chunk,
    TALL: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(1).to(tl.int64)
    _columns(
        dy, x, highs, lows, rstds, parts_dw, parts_db, dy_row, x_row, rows, columns, chunk,
        tl.program_id(0), program, TALL, BLOCK, AHEAD, ACCUMULATE,
    )  # fmt: skip


@triton.jit
def _backward_at_once(
    dx, dy, x, weight, highs, lows, rstds, dw, db, dy_row, x_row, weight_step, rows, columns, programs,
    TALL: tl.constexpr, BLOCK: tl.constexpr, SUMMED_TALL: tl.constexpr, SUMMED: tl.constexpr,
    ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """The first programs have a tile of rows each, all others a tile of columns."""
    program = tl.program_id(0).to(tl.int64)
    if program < programs:
        _rows(
            dx, dy, x, weight, highs, lows, rstds, None, None, dy_row, x_row, weight_step, rows, columns,
            program, programs, 0, TALL, BLOCK, 1, 1, ACCUMULATE,
        )  # fmt: skip
    else:
        _columns(
            dy, x, highs, lows, rstds, dw, db, dy_row, x_row, rows, columns, rows,
            program - programs, 0, SUMMED_TALL, SUMMED, 1, ACCUMULATE,
        )  # fmt: skip


# ---- Launches ----


def normalize(input, weight, bias, columns, eps, residual=None, kept=False):
    """Launches the forward on input, or on input + residual; returns output and (high, low, mean, rstd).

    The mean's two parts are None unless they are kept for a backward.
    """
    rows = input.numel() // columns if columns else 0
    statistics, accumulate = skeleton.accumulator(input.dtype)
    output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
    mean, rstd, *parts = torch.empty(4 if kept else 2, rows, dtype=statistics, device=input.device)
    high, low = parts or (None, None)
    x, other = (
        None if tensor is None else tiles.as_rows(tensor.reshape(rows, columns))
        for tensor in (input, residual)
    )
    w, b = (None if vector is None else vector.reshape(columns) for vector in (weight, bias))
    if rows:
        tall, block, warps, early, registers = tiles.forward_tile(rows, columns, input.dtype)
        with skeleton.on(input):
            _forward[(triton.cdiv(rows, tall),)](
                x, other, output, w, b, high, low, mean, rstd, x.stride(0), step(other), step(w), step(b),
                rows, columns, scalar(eps, input), TALL=tall, BLOCK=block, WHOLE=columns == block,
                EARLY=early, ACCUMULATE=accumulate, num_warps=warps, maxnreg=registers,
            )  # fmt: skip
    return output, (high, low, mean, rstd)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, columns, eps):
        kept = any(ctx.needs_input_grad[:3])
        output, (high, low, mean, rstd) = normalize(input, weight, bias, columns, eps, kept=kept)
        ctx.save_for_backward(input, weight, high, low, rstd)
        ctx.parameters = [None if v is None else (v.shape, v.dtype) for v in (weight, bias)]
        ctx.mark_non_differentiable(mean, rstd)
        return output, mean, rstd

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output, _grad_mean, _grad_rstd):
        x, weight, high, low, rstd = ctx.saved_tensors
        rows = rstd.numel()
        columns = x.numel() // rows if rows else 0
        grad_input = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        grad_weight, grad_bias = (
            skeleton.sum_over(rows, *like, x.device) if needed else None
            for like, needed in zip(ctx.parameters, ctx.needs_input_grad[1:3], strict=True)
        )
        if not rows:
            return grad_input, grad_weight, grad_bias, None, None
        x, dy = (tiles.as_rows(tensor.reshape(rows, columns)) for tensor in (x, grad_output))
        w = None if weight is None else weight.reshape(columns)
        tall, block, ahead, warps, pieces = tiles.backward_tile(rows, columns, x.dtype)
        fits = pieces <= tiles.PIECES
        strides = (dy.stride(0), x.stride(0))
        accumulate = skeleton.accumulator(x.dtype)[1]
        if tiles.sums_at_once(rows, columns, pieces):
            programs, (summed_tall, summed) = triton.cdiv(rows, tall), tiles.columns_at_once(rows, columns)
            summing = 0 if grad_weight is None and grad_bias is None else triton.cdiv(columns, summed)
            with skeleton.on(x):
                _backward_at_once[(programs + summing,)](
                    grad_input, dy, x, w, high, low, rstd, grad_weight, grad_bias, *strides, step(w), rows,
                    columns, programs, TALL=tall, BLOCK=block, SUMMED_TALL=summed_tall, SUMMED=summed,
                    ACCUMULATE=accumulate, num_warps=warps,
                )  # fmt: skip
            return grad_input, grad_weight, grad_bias, None, None
        if fits:
            programs = tiles.backward_programs(rows, tall, warps, pieces)
        else:
            programs, chunk = tiles.column_chunks(rows, columns)
        parts_dw, parts_db = (
            None if out is None else rstd.new_empty(programs, columns) for out in (grad_weight, grad_bias)
        )
        with skeleton.on(x):
            if fits:
                _backward[(programs, pieces)](
                    grad_input, dy, x, w, high, low, rstd, parts_dw, parts_db, *strides, step(w), rows,
                    columns, TALL=tall, BLOCK=block, PIECES=pieces, AHEAD=ahead, ACCUMULATE=accumulate,
                    num_warps=warps,
                )  # fmt: skip
            else:
                _backward_input[(rows,)](
                    grad_input, dy, x, w, high, low, rstd, *strides, step(w), columns,
                    BLOCK=block, ACCUMULATE=accumulate, num_warps=warps,
                )  # fmt: skip
            if not fits and (parts_dw is not None or parts_db is not None):
                tall, block = tiles.COLUMN_TILE
                _backward_columns[(triton.cdiv(columns, block), programs)](
                    dy, x, high, low, rstd, parts_dw, parts_db, *strides, rows, columns, chunk,
                    TALL=tall, BLOCK=block, AHEAD=ahead, ACCUMULATE=accumulate,
                )  # fmt: skip
            skeleton.join_parts(((parts_dw, grad_weight), (parts_db, grad_bias)), programs, columns)
        return grad_input, grad_weight, grad_bias, None, None


# ---- The subject ----

# Squares and their sums stay finite; the mean may be a million standard deviations.
DOMAIN = Domain(
    max_abs=1e15, max_kappa=1e6, max_columns=tiles.LONGEST_ROW, parameter_dtypes=skeleton.PARAMETER_DTYPES
)


@subject(
    op="layer_norm",
    language="triton",
    source=SOURCE,
    variance="two_pass_corrected_mean",
    variance_options={"corrects_mean": True},
    formula="compensated",
    clamp=True,
    accumulates="float32",
    dtypes=skeleton.DTYPES,
    trees=Trees(
        statistics=tree(depth=tiles.forward_depth),
        row_gradients=tree(depth=tiles.backward_depth),
        columns=tree(depth=tiles.column_depth),
    ),
    mean_contraction="none",  # the mean ends in an IEEE division, which no compiler contracts
    divide_by_n="division",
    domain=DOMAIN,
    returns=("output", "mean", "rstd"),
    guarantees=skeleton.GUARANTEES,
    extents=((67, 8193),),  # more tiles than programs of the backward
)
def layer_norm_compensated_triton(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    columns = skeleton.normalized_columns(
        "layer_norm", input, normalized_shape, tiles.LONGEST_ROW, weight=weight, bias=bias
    )  # fmt: skip
    return _LayerNorm.apply(input, weight, bias, columns, float(eps))
