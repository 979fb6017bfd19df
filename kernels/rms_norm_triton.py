"""Root-mean-square normalization of one Triton program a row, forward and backward, for any layout.

It is the RMSNorm of the norm series (sum of squares / N, reciprocal root, scale) with what that leaves out:
strides of every tensor, 64-bit offsets, a missing weight, rows of any width, and the backward.
Forward: every lane adds its squares in fp32, the lanes are joined. Backward: a program takes a fixed chunk
of rows and keeps its part of the weight's gradient in fp32; a second kernel joins the parts in a fixed
order, so there is no lock and no atomic, and the bits do not change between runs.

A row that holds NaN comes out as NaN. Beyond |x| = 1e15 the sum of squares may overflow in fp32: the kernel
makes no promise there.
"""

from pathlib import Path

import torch
import triton
import triton.language as tl

from verifier import Domain, Source, load, subject

SOURCE = Source(
    title="LeetGPU exercise 07: the Norm series",
    changed="every stride and rank, a missing weight, 64-bit offsets, rows of any length, a backward",
)

skeleton = load(Path(__file__).with_name("row_norm_skeleton_triton.py")).module
divide, root = skeleton.divide, skeleton.root


@triton.jit
def _forward(
    x, y, weight, rstds, x_row, x_column, weight_step, columns, eps,
    BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x += row * x_row
    y += row * columns
    if rstds.dtype.element_ty == tl.float64:
        eps = tl.load(eps)  # a Python float reaches a kernel as fp32
    # First sweep: the mean square. Masked lanes are zeros, which a sum of squares does not see.
    total = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        value = tl.load(x + column * x_column, mask=column < columns, other=0.0).to(ACCUMULATE)
        total += value * value
    mean_square = divide(tl.sum(total, axis=0), tl.cast(columns, ACCUMULATE))
    rstd = divide(tl.full((), 1.0, ACCUMULATE), root(mean_square + eps))
    tl.store(rstds + row, rstd)
    # Second sweep: the output.
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        out = tl.load(x + column * x_column, mask=inside, other=0.0).to(ACCUMULATE) * rstd
        if weight is not None:
            out *= tl.load(weight + column * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
        tl.store(y + column, out, mask=inside)


@triton.jit(do_not_specialize=["rows", "chunk"])
def _backward_rows(
    dx, dy, x, weight, rstds, parts_dw, dy_row, dy_column, x_row, x_column, weight_step,
    rows, columns, chunk, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes `chunk` rows, each within one tile: their dx, and one part of dw."""
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK).to(tl.int64)
    inside = column < columns
    if weight is not None:
        w = tl.load(weight + column * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
    part_dw = tl.zeros((BLOCK,), ACCUMULATE)
    for row in range(program * chunk, tl.minimum((program + 1) * chunk, rows)):
        rstd = tl.load(rstds + row)
        value = tl.load(x + row * x_row + column * x_column, mask=inside, other=0.0).to(ACCUMULATE)
        d = tl.load(dy + row * dy_row + column * dy_column, mask=inside, other=0.0).to(ACCUMULATE)
        hat = value * rstd
        g = d
        if weight is not None:
            g = d * w
        c1 = divide(tl.sum(hat * g, axis=0), tl.cast(columns, ACCUMULATE))
        tl.store(dx + row * columns + column, (g - hat * c1) * rstd, mask=inside)
        part_dw += d * hat
    if parts_dw is not None:
        tl.store(parts_dw + program * columns + column, part_dw, mask=inside)


@triton.jit
def _backward_input(
    dx, dy, x, weight, rstds, dy_row, dy_column, x_row, x_column, weight_step, columns,
    BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes one row of any width, tile by tile: its dx."""
    row = tl.program_id(0).to(tl.int64)
    x += row * x_row
    dy += row * dy_row
    rstd = tl.load(rstds + row)
    sum_hat_g = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        hat = tl.load(x + column * x_column, mask=inside, other=0.0).to(ACCUMULATE) * rstd
        g = tl.load(dy + column * dy_column, mask=inside, other=0.0).to(ACCUMULATE)
        if weight is not None:
            g *= tl.load(weight + column * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
        sum_hat_g += hat * g
    c1 = divide(tl.sum(sum_hat_g, axis=0), tl.cast(columns, ACCUMULATE))
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        hat = tl.load(x + column * x_column, mask=inside, other=0.0).to(ACCUMULATE) * rstd
        g = tl.load(dy + column * dy_column, mask=inside, other=0.0).to(ACCUMULATE)
        if weight is not None:
            g *= tl.load(weight + column * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
        tl.store(dx + row * columns + column, (g - hat * c1) * rstd, mask=inside)


@triton.jit
def _backward_columns(
    dy, x, rstds, parts_dw, dy_row, dy_column, x_row, x_column, rows, columns, chunk,
    BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes `chunk` rows of one tile of columns: one part of dw."""
    program = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    part_dw = tl.zeros((BLOCK,), ACCUMULATE)
    for row in range(program * chunk, tl.minimum((program + 1) * chunk, rows)):
        value = tl.load(x + row * x_row + column * x_column, mask=inside, other=0.0).to(ACCUMULATE)
        d = tl.load(dy + row * dy_row + column * dy_column, mask=inside, other=0.0).to(ACCUMULATE)
        part_dw += d * (value * tl.load(rstds + row))
    tl.store(parts_dw + program * columns + column, part_dw, mask=inside)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, columns, eps):
        rows = input.numel() // columns if columns else 0
        statistics, accumulate = skeleton.accumulator(input.dtype)
        output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
        rstd = torch.empty(rows, dtype=statistics, device=input.device)
        x = input.reshape(rows, columns)  # a view where the strides allow it
        w = None if weight is None else weight.reshape(columns)
        if rows:
            block, warps = skeleton.row_tile(columns, input.dtype)
            with skeleton.on(input):
                _forward[(rows,)](
                    x, output, w, rstd, *x.stride(), skeleton.step(w), columns, skeleton.scalar(eps, input),
                    BLOCK=block, ACCUMULATE=accumulate, num_warps=warps,
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
        x, dy = x.reshape(rows, columns), grad_output.reshape(rows, columns)
        programs, chunk = skeleton.chunks(rows, columns)
        if grad_weight is not None:
            parts = rstd.new_empty(programs, columns)
        with skeleton.on(x):
            _launch_backward(grad_input, dy, x, weight, rstd, parts, programs, chunk)
            skeleton.join_parts([(parts, grad_weight)], programs, columns)
        return grad_input, grad_weight, None, None


def _launch_backward(grad_input, dy, x, weight, rstd, parts, programs, chunk):
    rows, columns = x.shape
    block, warps = skeleton.row_tile(columns, x.dtype)
    if columns > block:
        backward_in_tiles(grad_input, dy, x, weight, rstd, parts, programs, chunk)
        return
    w = None if weight is None else weight.reshape(columns)
    _backward_rows[(programs,)](
        grad_input, dy, x, w, rstd, parts, *dy.stride(), *x.stride(), skeleton.step(w), rows, columns, chunk,
        BLOCK=block, ACCUMULATE=skeleton.accumulator(x.dtype)[1], num_warps=warps,
    )  # fmt: skip


def backward_in_tiles(grad_input, dy, x, weight, rstd, parts, programs, chunk):
    """Launches what takes rows of any width: their dx, and parts of dw."""
    rows, columns = x.shape
    w = None if weight is None else weight.reshape(columns)
    accumulate = skeleton.accumulator(x.dtype)[1]
    block, warps = skeleton.row_tile(columns, x.dtype)
    strides = (*dy.stride(), *x.stride())
    _backward_input[(rows,)](
        grad_input, dy, x, w, rstd, *strides, skeleton.step(w), columns,
        BLOCK=block, ACCUMULATE=accumulate, num_warps=warps,
    )  # fmt: skip
    if parts is not None:
        _backward_columns[(triton.cdiv(columns, 128), programs)](
            dy, x, rstd, parts, *strides, rows, columns, chunk, BLOCK=128, ACCUMULATE=accumulate,
        )  # fmt: skip


@subject(
    op="rms_norm",
    language="triton",
    source=SOURCE,
    variance="rms",
    accumulates="float32",
    dtypes=skeleton.DTYPES,
    trees=skeleton.TREES,
    mean_contraction="none",  # the mean square ends in an IEEE division, which no compiler contracts
    divide_by_n="division",
    # The sum of squares stays finite.
    domain=Domain(max_abs=1e15, parameter_dtypes=skeleton.PARAMETER_DTYPES),
    returns=("output", "rstd"),
    guarantees=skeleton.GUARANTEES,
)
def rms_norm_triton(input, normalized_shape, weight=None, eps=None):
    columns = skeleton.normalized_columns("rms_norm", input, normalized_shape, weight=weight)
    if eps is None:  # as PyTorch does
        eps = torch.finfo(skeleton.accumulator(input.dtype)[0]).eps
    return _RMSNorm.apply(input, weight, columns, float(eps))
