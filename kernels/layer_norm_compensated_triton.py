"""Layer normalization that keeps the mean as two numbers: right to a few ulp however large the mean is.

A mean that is rounded to fp32 is off by up to u |mean|, and so is every x - mean: at a mean of 1e6 and a
standard deviation of 1 a correct layer norm errs by 0.05. Here the mean h that comes first is subtracted,
and what it lacks, l = mean(x - h), is subtracted from the rest: y = ((x - h) - l) * rstd * weight + bias.
The variance mean((x - h)^2) - l^2 is corrected by the same l. The backward pass reads h and l, so that its
gradients do not feel the mean either.

One program has a row in registers, so l takes no further sweep over memory. Backward, a fixed number of
programs takes the rows in turns, and keeps its parts of the weight's and bias's gradients in fp32; a second
kernel joins them in a fixed order. There is no lock and no atomic, and no device changes the bits.
Rows beyond the largest block are refused.
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

skeleton = load(Path(__file__).with_name("row_norm_skeleton_triton.py")).module
divide, root, step, scalar = skeleton.divide, skeleton.root, skeleton.step, skeleton.scalar
LONGEST_ROW = 2**16  # one block; beyond it nothing is left in registers
PROGRAMS = 264  # of the backward: two on each multiprocessor of an H100, and as many on every other device

# ---- Forward: one program a row ----


@triton.jit
def _forward(
    x, y, weight, bias, highs, lows, means, rstds, x_row, x_column, weight_step, bias_step, columns, eps,
    BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK).to(tl.int64)
    inside = column < columns
    count = tl.cast(columns, ACCUMULATE)
    if means.dtype.element_ty == tl.float64:
        eps = tl.load(eps)  # a Python float reaches a kernel as fp32
    value = tl.load(x + row * x_row + column * x_column, mask=inside, other=0.0).to(ACCUMULATE)
    high = divide(tl.sum(value, axis=0), count)
    deviation = tl.where(inside, value - high, 0.0)  # a masked lane would add -high
    low = divide(tl.sum(deviation, axis=0), count)
    variance = divide(tl.sum(deviation * deviation, axis=0), count) - low * low
    variance = tl.where(variance < 0.0, 0.0, variance)  # keeps NaN, which a maximum would not
    rstd = divide(tl.full((), 1.0, ACCUMULATE), root(variance + eps))
    tl.store(highs + row, high)
    tl.store(lows + row, low)
    tl.store(means + row, high + low)
    tl.store(rstds + row, rstd)
    out = (deviation - low) * rstd
    if weight is not None:
        out *= tl.load(weight + column * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
    if bias is not None:
        out += tl.load(bias + column * bias_step, mask=inside, other=0.0).to(ACCUMULATE)
    tl.store(y + row * columns + column, out, mask=inside)


# ---- Backward: PROGRAMS programs, each every PROGRAMS-th row ----


@triton.jit
def _backward(
    dx, dy, x, weight, highs, lows, rstds, parts_dw, parts_db, dy_row, dy_column, x_row, x_column,
    weight_step, rows, columns, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK).to(tl.int64)
    inside = column < columns
    count = tl.cast(columns, ACCUMULATE)
    if weight is not None:
        w = tl.load(weight + column * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
    part_dw = tl.zeros((BLOCK,), ACCUMULATE)
    part_db = tl.zeros((BLOCK,), ACCUMULATE)
    for row in range(program, rows, tl.num_programs(0)):
        high, low, rstd = tl.load(highs + row), tl.load(lows + row), tl.load(rstds + row)
        value = tl.load(x + row * x_row + column * x_column, mask=inside, other=0.0).to(ACCUMULATE)
        d = tl.load(dy + row * dy_row + column * dy_column, mask=inside, other=0.0).to(ACCUMULATE)
        hat = tl.where(inside, ((value - high) - low) * rstd, 0.0)
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


# ---- Launches ----


def _tile(columns):
    """Columns of the block and warps: at most 16 of them, 64 columns a lane where rows are longest."""
    block = triton.next_power_of_2(columns)
    return block, min(max(block // 256, 1), 16)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, columns, eps):
        rows = input.numel() // columns if columns else 0
        statistics, accumulate = skeleton.accumulator(input.dtype)
        output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
        high, low, mean, rstd = torch.empty(4, rows, dtype=statistics, device=input.device)
        x = input.reshape(rows, columns)  # a view where the strides allow it
        w, b = (None if vector is None else vector.reshape(columns) for vector in (weight, bias))
        if rows:
            block, warps = _tile(columns)
            with skeleton.on(input):
                _forward[(rows,)](
                    x, output, w, b, high, low, mean, rstd, *x.stride(), step(w), step(b), columns,
                    scalar(eps, input), BLOCK=block, ACCUMULATE=accumulate, num_warps=warps,
                )  # fmt: skip
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
            torch.zeros(like[0], dtype=like[1], device=x.device) if needed else None
            for like, needed in zip(ctx.parameters, ctx.needs_input_grad[1:3], strict=True)
        )
        if not rows:
            return grad_input, grad_weight, grad_bias, None, None
        x, dy = x.reshape(rows, columns), grad_output.reshape(rows, columns)
        w = None if weight is None else weight.reshape(columns)
        programs = min(rows, PROGRAMS)
        parts_dw, parts_db = (
            None if out is None else rstd.new_empty(programs, columns) for out in (grad_weight, grad_bias)
        )
        block, warps = _tile(columns)
        with skeleton.on(x):
            _backward[(programs,)](
                grad_input, dy, x, w, high, low, rstd, parts_dw, parts_db, *dy.stride(), *x.stride(), step(w),
                rows, columns, BLOCK=block, ACCUMULATE=skeleton.accumulator(x.dtype)[1], num_warps=warps,
            )  # fmt: skip
            for parts, out in ((parts_dw, grad_weight), (parts_db, grad_bias)):
                if out is not None:
                    skeleton.join_parts(parts, out, programs, columns)
        return grad_input, grad_weight, grad_bias, None, None


# ---- The subject ----


def _row_depth(columns):
    """Additions that a leaf of a row's sum meets at most, in whichever dtype."""
    return skeleton.grouped_depth(columns, _tile)


def _column_depth(rows):
    """Additions that a leaf of a column's sum meets at most: of a program's rows, then over the parts."""
    programs, parts = min(rows, PROGRAMS), skeleton.PARTS
    return triton.cdiv(rows, PROGRAMS) - 1 + triton.cdiv(programs, parts) - 1 + parts - 1


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
        statistics=tree(depth=_row_depth),
        row_gradients=tree(depth=_row_depth),
        columns=tree(depth=_column_depth),
    ),
    mean_contraction="none",  # the mean ends in an IEEE division, which no compiler contracts
    divide_by_n="division",
    # Squares and their sums stay finite; the mean may be a million standard deviations.
    domain=Domain(
        max_abs=1e15, max_kappa=1e6, max_columns=LONGEST_ROW, parameter_dtypes=skeleton.PARAMETER_DTYPES
    ),
    returns=("output", "mean", "rstd"),
    guarantees=skeleton.GUARANTEES,
)
def layer_norm_compensated_triton(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    columns = skeleton.normalized_columns(
        "layer_norm", input, normalized_shape, LONGEST_ROW, weight=weight, bias=bias
    )  # fmt: skip
    return _LayerNorm.apply(input, weight, bias, columns, float(eps))
