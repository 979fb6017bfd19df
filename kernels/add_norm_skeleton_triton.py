"""Norms of input + residual in Triton, one program a row, forward and backward, for any layout: no subject.

With a mask (kept) the input counts only where that is True, times a scale: dropout with its mask given.
Forward: each sweep over a row adds both tensors anew, which gives the same bits; one of them stores the sum.
KEEP says what is normalized: the sum in the accumulation format, or as the residual's dtype stores it.
CENTRED says whether a mean is taken away, as a layer norm does, which names the function that computes it
(MEAN).
Backward: two gradients come in, of the output and of the sum. That of the norm is computed from the stored
sum, the other one is added in the accumulation format, and both summands get the total. A program takes a
fixed chunk of rows and keeps its part of the weight's and bias's gradients in fp32; a second kernel joins the
parts in a fixed order, so there is no lock and no atomic, and the bits do not change between runs.
"""

from pathlib import Path

import torch
import triton
import triton.language as tl

from verifier import load

skeleton = load(Path(__file__).with_name("row_norm_skeleton_triton.py")).module
divide, root, step, sums = skeleton.divide, skeleton.root, skeleton.step, skeleton.sums


@triton.jit
def _added(
    x, r, total, kept, scale, column, inside, x_column, r_column, kept_column,
    KEEP: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Adds a tile of both tensors: the sum that is normalized, in the accumulation format."""
    value = tl.load(x + column * x_column, mask=inside, other=0.0).to(ACCUMULATE)
    if kept is not None:
        keep = tl.load(kept + column * kept_column, mask=inside, other=0) != 0
        value = tl.where(keep, value * tl.cast(scale, ACCUMULATE), 0.0)
    value += tl.load(r + column * r_column, mask=inside, other=0.0).to(ACCUMULATE)
    return value if KEEP else value.to(total.dtype.element_ty).to(ACCUMULATE)


@triton.jit
def mean_of_row(
    x, r, total, kept, scale, x_column, r_column, kept_column, columns,
    KEEP: tl.constexpr, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    lanes = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        lanes += _added(
            x, r, total, kept, scale, column, column < columns, x_column, r_column, kept_column,
            KEEP, ACCUMULATE,
        )  # fmt: skip
    return divide(tl.sum(lanes, axis=0), tl.cast(columns, ACCUMULATE))


@triton.jit
def _forward(
    x, r, kept, y, total, weight, bias, means, rstds, x_row, x_column, r_row, r_column, kept_row, kept_column,
    weight_step, bias_step, columns, eps, scale,
    MEAN: tl.constexpr, KEEP: tl.constexpr, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x += row * x_row
    r += row * r_row
    kept = None if kept is None else kept + row * kept_row
    y += row * columns
    total += row * columns
    count = tl.cast(columns, ACCUMULATE)
    if rstds.dtype.element_ty == tl.float64:
        eps = tl.load(eps)  # a Python float reaches a kernel as fp32
        if kept is not None:
            scale = tl.load(scale)
    mean = tl.full((), 0.0, ACCUMULATE)
    if MEAN is not None:
        mean = MEAN(
            x, r, total, kept, scale, x_column, r_column, kept_column, columns, KEEP, BLOCK, ACCUMULATE
        )  # fmt: skip
        tl.store(means + row, mean)
    lanes = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        value = _added(
            x, r, total, kept, scale, column, inside, x_column, r_column, kept_column, KEEP, ACCUMULATE
        )  # fmt: skip
        if MEAN is not None:
            value = tl.where(inside, value - mean, 0.0)  # a masked lane would add mean^2
        lanes += value * value
    rstd = divide(tl.full((), 1.0, ACCUMULATE), root(divide(tl.sum(lanes, axis=0), count) + eps))
    tl.store(rstds + row, rstd)
    # Last sweep: both results.
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        value = _added(
            x, r, total, kept, scale, column, inside, x_column, r_column, kept_column, KEEP, ACCUMULATE
        )  # fmt: skip
        tl.store(total + column, value, mask=inside)
        if MEAN is not None:
            value = value - mean
        out = value * rstd
        if weight is not None:
            out *= tl.load(weight + column * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
        if bias is not None:
            out += tl.load(bias + column * bias_step, mask=inside, other=0.0).to(ACCUMULATE)
        tl.store(y + column, out, mask=inside)


@triton.jit
def _tile(
    dy, total, weight, mean, rstd, dy_column, weight_step, column, inside,
    CENTRED: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Reads a tile: the gradient of the output, the normalized sum, and the gradient of that."""
    d = tl.load(dy + column * dy_column, mask=inside, other=0.0).to(ACCUMULATE)
    hat = tl.load(total + column, mask=inside, other=0.0).to(ACCUMULATE)
    if CENTRED:
        hat = tl.where(inside, hat - mean, 0.0)
    hat *= rstd
    g = d
    if weight is not None:
        g = d * tl.load(weight + column * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
    return d, hat, g


@triton.jit
def _store(
    dx, dr, dtotal, kept, scale, dtotal_column, kept_column, column, inside, gradient,
    ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Adds the gradient of the sum, and gives the total to both summands: to the input what is kept of it."""
    if dtotal is not None:
        gradient += tl.load(dtotal + column * dtotal_column, mask=inside, other=0.0).to(ACCUMULATE)
    if dr is not None:
        tl.store(dr + column, gradient, mask=inside)
    if dx is not None:
        if kept is not None:
            keep = tl.load(kept + column * kept_column, mask=inside, other=0) != 0
            gradient = tl.where(keep, gradient * tl.cast(scale, ACCUMULATE), 0.0)
        tl.store(dx + column, gradient, mask=inside)


@triton.jit(do_not_specialize=["rows", "chunk"])
def _backward_rows(
    dx, dr, dy, dtotal, kept, total, weight, means, rstds, parts_dw, parts_db, dy_row, dy_column, dtotal_row,
    dtotal_column, kept_row, kept_column, weight_step, rows, columns, chunk, scale,
    CENTRED: tl.constexpr, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes `chunk` rows, each within one tile: their gradients, and one part of dw and db."""
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK).to(tl.int64)
    inside = column < columns
    count = tl.cast(columns, ACCUMULATE)
    if kept is not None and rstds.dtype.element_ty == tl.float64:
        scale = tl.load(scale)
    part_dw = tl.zeros((BLOCK,), ACCUMULATE)
    part_db = tl.zeros((BLOCK,), ACCUMULATE)
    for row in range(program * chunk, tl.minimum((program + 1) * chunk, rows)):
        rstd = tl.load(rstds + row)
        mean = tl.load(means + row) if CENTRED else rstd
        d, hat, g = _tile(
            dy + row * dy_row, total + row * columns, weight, mean, rstd, dy_column, weight_step, column,
            inside, CENTRED, ACCUMULATE,
        )  # fmt: skip
        if CENTRED:
            along_hat, plain = sums(hat * g, g, axis=0)
            through = hat * divide(along_hat, count) + divide(plain, count)
        else:
            through = hat * divide(tl.sum(hat * g, axis=0), count)
        _store(
            None if dx is None else dx + row * columns, None if dr is None else dr + row * columns,
            None if dtotal is None else dtotal + row * dtotal_row,
            None if kept is None else kept + row * kept_row, scale, dtotal_column, kept_column, column,
            inside, (g - through) * rstd, ACCUMULATE,
        )  # fmt: skip
        part_dw += d * hat
        part_db += d
    if parts_dw is not None:
        tl.store(parts_dw + program * columns + column, part_dw, mask=inside)
    if parts_db is not None:
        tl.store(parts_db + program * columns + column, part_db, mask=inside)


@triton.jit
def _backward_input(
    dx, dr, dy, dtotal, kept, total, weight, means, rstds, dy_row, dy_column, dtotal_row, dtotal_column,
    kept_row, kept_column, weight_step, columns, scale,
    CENTRED: tl.constexpr, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes one row of any width, tile by tile: the gradients of both summands."""
    row = tl.program_id(0).to(tl.int64)
    dy += row * dy_row
    total += row * columns
    count = tl.cast(columns, ACCUMULATE)
    rstd = tl.load(rstds + row)
    mean = tl.load(means + row) if CENTRED else rstd
    if kept is not None and rstds.dtype.element_ty == tl.float64:
        scale = tl.load(scale)
    sum_hat_g = tl.zeros((BLOCK,), ACCUMULATE)
    sum_g = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        _, hat, g = _tile(
            dy, total, weight, mean, rstd, dy_column, weight_step, column, column < columns,
            CENTRED, ACCUMULATE,
        )  # fmt: skip
        sum_hat_g += hat * g
        sum_g += g
    along_hat, plain = sums(sum_hat_g, sum_g, axis=0)
    c1, c2 = divide(along_hat, count), divide(plain, count)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        _, hat, g = _tile(
            dy, total, weight, mean, rstd, dy_column, weight_step, column, inside, CENTRED, ACCUMULATE
        )  # fmt: skip
        through = hat * c1
        if CENTRED:
            through += c2
        _store(
            None if dx is None else dx + row * columns, None if dr is None else dr + row * columns,
            None if dtotal is None else dtotal + row * dtotal_row,
            None if kept is None else kept + row * kept_row, scale, dtotal_column, kept_column, column,
            inside, (g - through) * rstd, ACCUMULATE,
        )  # fmt: skip


@triton.jit
def _backward_columns(
    dy, total, means, rstds, parts_dw, parts_db, dy_row, dy_column, rows, columns, chunk,
    CENTRED: tl.constexpr, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes `chunk` rows of one tile of columns: one part of dw and db."""
    program = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    part_dw = tl.zeros((BLOCK,), ACCUMULATE)
    part_db = tl.zeros((BLOCK,), ACCUMULATE)
    for row in range(program * chunk, tl.minimum((program + 1) * chunk, rows)):
        rstd = tl.load(rstds + row)
        mean = tl.load(means + row) if CENTRED else rstd
        d, hat, _ = _tile(
            dy + row * dy_row, total + row * columns, None, mean, rstd, dy_column, 0, column, inside,
            CENTRED, ACCUMULATE,
        )  # fmt: skip
        part_dw += d * hat
        part_db += d
    if parts_dw is not None:
        tl.store(parts_dw + program * columns + column, part_dw, mask=inside)
    if parts_db is not None:
        tl.store(parts_db + program * columns + column, part_db, mask=inside)


def steps(rows):
    """Strides of rows, which may be absent."""
    return (0, 0) if rows is None else rows.stride()


def factor_of(kept, scale, like):
    """What is multiplied into the elements that are kept, as a kernel takes it; nothing without a mask."""
    return None if kept is None else skeleton.scalar(scale, like)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, residual, kept, weight, bias, columns, eps, scale, mean_of, keep):
        rows = input.numel() // columns if columns else 0
        statistics, accumulate = skeleton.accumulator(input.dtype)
        output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
        total = torch.empty(input.shape, dtype=residual.dtype, device=input.device)
        rstd = torch.empty(rows, dtype=statistics, device=input.device)
        mean = torch.empty_like(rstd) if mean_of else None
        x, r = input.reshape(rows, columns), residual.reshape(rows, columns)
        k = None if kept is None else kept.reshape(rows, columns)
        w, b = (None if vector is None else vector.reshape(columns) for vector in (weight, bias))
        if rows:
            block, warps = skeleton.row_tile(columns, input.dtype)
            with skeleton.on(input):
                _forward[(rows,)](
                    x, r, k, output, total, w, b, mean, rstd, *x.stride(), *r.stride(), *steps(k), step(w),
                    step(b), columns, skeleton.scalar(eps, input), factor_of(kept, scale, input),
                    MEAN=mean_of, KEEP=keep, BLOCK=block, ACCUMULATE=accumulate, num_warps=warps,
                )  # fmt: skip
        ctx.save_for_backward(total, weight, mean, rstd, kept)
        ctx.scale = scale
        ctx.dtypes = input.dtype, residual.dtype
        ctx.parameters = [
            None if vector is None else (vector.shape, vector.dtype) for vector in (weight, bias)
        ]
        ctx.set_materialize_grads(False)
        statistics = (mean, rstd) if mean_of else (rstd,)
        ctx.mark_non_differentiable(*statistics)
        return output, total, *statistics

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output, grad_total, *_):
        total, weight, mean, rstd, kept = ctx.saved_tensors
        rows = rstd.numel()
        columns = total.numel() // rows if rows else 0
        if grad_output is None:  # the output was not used, but the sum was
            grad_output = torch.zeros_like(total)
        summands = [
            torch.empty(total.shape, dtype=dtype, device=total.device) if needed else None
            for dtype, needed in zip(ctx.dtypes, ctx.needs_input_grad[:2], strict=True)
        ]
        parameters = [
            skeleton.sum_over(rows, *like, total.device) if needed else None
            for like, needed in zip(ctx.parameters, ctx.needs_input_grad[3:5], strict=True)
        ]
        if rows:
            dy = grad_output.reshape(rows, columns)
            grad_total_rows = None if grad_total is None else grad_total.reshape(rows, columns)
            with skeleton.on(total):
                _launch_backward(
                    summands,
                    parameters,
                    dy,
                    grad_total_rows,
                    None if kept is None else kept.reshape(rows, columns),
                    ctx.scale,
                    total.reshape(rows, columns),
                    weight,
                    mean,
                    rstd,
                    ctx.dtypes[0],
                )
        return *summands, None, *parameters, None, None, None, None, None


def _launch_backward(
    summands, parameters, dy, grad_total_rows, kept, scale, total, weight, mean, rstd, dtype
):
    rows, columns = total.shape
    w = None if weight is None else weight.reshape(columns)
    accumulate = skeleton.accumulator(dtype)[1]
    block, warps = skeleton.row_tile(columns, dtype)  # as forward has it, whatever dtype the sum has
    programs, chunk = skeleton.chunks(rows, columns)
    parts = [None if out is None else rstd.new_empty(programs, columns) for out in parameters]
    strides = (*dy.stride(), *steps(grad_total_rows), *steps(kept), step(w))
    factor = factor_of(kept, scale, rstd)
    constants = {"CENTRED": mean is not None, "ACCUMULATE": accumulate}
    if columns <= block:
        _backward_rows[(programs,)](
            *summands, dy, grad_total_rows, kept, total, w, mean, rstd, *parts, *strides, rows, columns,
            chunk, factor, **constants, BLOCK=block, num_warps=warps,
        )  # fmt: skip
    else:
        _backward_input[(rows,)](
            *summands, dy, grad_total_rows, kept, total, w, mean, rstd, *strides, columns, factor,
            **constants, BLOCK=block, num_warps=warps,
        )  # fmt: skip
        if any(part is not None for part in parts):
            _backward_columns[(triton.cdiv(columns, 128), programs)](
                dy, total, mean, rstd, *parts, *dy.stride(), rows, columns, chunk, **constants, BLOCK=128,
            )  # fmt: skip
    skeleton.join_parts(zip(parts, parameters, strict=True), programs, columns)


def add_norm(
    op, input, residual, normalized_shape, weight, bias, eps, *, mean_of, keep, kept=None, scale=1.0
):
    """Normalizes input + residual over the last dimensions; returns the output, the sum and statistics.

    mean_of: `mean_of_row`, or None for a norm that takes no mean away. kept: boolean, of the input's shape;
    where it is False the input counts as 0, elsewhere it is multiplied by the scale. The sum and its gradient
    have the residual's dtype.
    """
    columns = skeleton.normalized_columns(op, input, normalized_shape, weight=weight, bias=bias)
    if residual.shape != input.shape or residual.device != input.device:
        raise ValueError(f"{op} takes a residual of the shape and device of input.")
    if residual.dtype not in {input.dtype, torch.float32}:
        raise TypeError(f"{op} takes a residual in the dtype of input or in float32, not {residual.dtype}.")
    if kept is not None and (kept.shape != input.shape or kept.dtype != torch.bool):
        raise ValueError(f"{op} takes a boolean mask of the shape of input.")
    return _AddNorm.apply(
        input, residual, kept, weight, bias, columns, float(eps), float(scale), mean_of, keep
    )
