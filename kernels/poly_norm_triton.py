"""Poly norm in Triton, forward and backward, for any layout: three powers of a row, each divided by its size.

Forward: one program a row. Every lane adds the squares of x, x**2 and x**3 in fp32, the lanes are joined, and
the three reciprocal roots are kept. Halves are widened before any power is taken: in fp16 a third power
overflows from 40 on.
Backward: a program takes a fixed chunk of rows. Of each row it adds g * norm(u) for every power u, which the
gradient of x needs as a mean and those of the weights as they are, and g; a second kernel joins the parts in
a fixed order, so that there is no lock and no atomic, and the bits do not change between runs.

A row that holds NaN comes out as NaN. Beyond |x| = 1e5 the sum of sixth powers may overflow in fp32: the
kernel makes no promise there.
"""

from pathlib import Path

import torch
import triton
import triton.language as tl

from verifier import Domain, Source, load, subject

SOURCE = Source(
    title="Polynomial Composition Activations: Unleashing the Dynamics of Large Language Models (PolyNorm)",
    author="Zhijian Zhuo, Ya Wang, Yutao Zeng, Xiaoqing Li, Xun Zhou, Jinwen Ma",
    url="https://arxiv.org/abs/2411.03884",
    changed="written anew as kernels: every stride and rank, 64-bit offsets, rows of any length, an empty "
    "batch, powers in fp32, gradients in a fixed order",
)

skeleton = load(Path(__file__).with_name("row_norm_skeleton_triton.py")).module
divide, product, root = skeleton.divide, skeleton.product, skeleton.root


@triton.jit
def _reciprocal_root(squares, columns, eps):
    one = tl.full((), 1.0, squares.dtype)
    return divide(one, root(divide(tl.sum(squares, axis=0), tl.cast(columns, squares.dtype)) + eps))


@triton.jit
def _forward(
    x, y, weight, bias, rstds, x_row, x_column, weight_step, columns, eps,
    BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x += row * x_row
    y += row * columns
    if rstds.dtype.element_ty == tl.float64:
        eps = tl.load(eps)  # a Python float reaches a kernel as fp32
    # First sweep: the squares of the powers. Masked lanes are zeros, which a sum of squares does not see.
    threes = tl.zeros((BLOCK,), ACCUMULATE)
    twos = tl.zeros((BLOCK,), ACCUMULATE)
    ones = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        value = tl.load(x + column * x_column, mask=column < columns, other=0.0).to(ACCUMULATE)
        square = product(value, value)
        cube = square * value
        threes += cube * cube
        twos += square * square
        ones += square
    rstd_3 = _reciprocal_root(threes, columns, eps)
    rstd_2 = _reciprocal_root(twos, columns, eps)
    rstd_1 = _reciprocal_root(ones, columns, eps)
    tl.store(rstds + 3 * row, rstd_3)
    tl.store(rstds + 3 * row + 1, rstd_2)
    tl.store(rstds + 3 * row + 2, rstd_1)
    # Second sweep: the output.
    w_3 = tl.load(weight).to(ACCUMULATE)
    w_2 = tl.load(weight + weight_step).to(ACCUMULATE)
    w_1 = tl.load(weight + 2 * weight_step).to(ACCUMULATE)
    b = tl.load(bias).to(ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        value = tl.load(x + column * x_column, mask=inside, other=0.0).to(ACCUMULATE)
        square = value * value
        out = w_3 * (square * value * rstd_3) + w_2 * (square * rstd_2) + w_1 * (value * rstd_1) + b
        tl.store(y + column, out, mask=inside)


@triton.jit(do_not_specialize=["rows", "chunk"])
def _backward(
    dx, dy, x, weight, rstds, parts_dw, parts_db, dy_row, dy_column, x_row, x_column, weight_step,
    rows, columns, chunk, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes `chunk` rows of any width: their dx, and one part of each sum."""
    program = tl.program_id(0).to(tl.int64)
    w_3 = tl.load(weight).to(ACCUMULATE)
    w_2 = tl.load(weight + weight_step).to(ACCUMULATE)
    w_1 = tl.load(weight + 2 * weight_step).to(ACCUMULATE)
    count = tl.cast(columns, ACCUMULATE)
    part_3 = tl.full((), 0.0, ACCUMULATE)
    part_2 = tl.full((), 0.0, ACCUMULATE)
    part_1 = tl.full((), 0.0, ACCUMULATE)
    part_b = tl.full((), 0.0, ACCUMULATE)
    for row in range(program * chunk, tl.minimum((program + 1) * chunk, rows)):
        rstd_3 = tl.load(rstds + 3 * row)
        rstd_2 = tl.load(rstds + 3 * row + 1)
        rstd_1 = tl.load(rstds + 3 * row + 2)
        threes = tl.zeros((BLOCK,), ACCUMULATE)
        twos = tl.zeros((BLOCK,), ACCUMULATE)
        ones = tl.zeros((BLOCK,), ACCUMULATE)
        all_d = tl.zeros((BLOCK,), ACCUMULATE)
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK).to(tl.int64)
            inside = column < columns
            value = tl.load(x + row * x_row + column * x_column, mask=inside, other=0.0).to(ACCUMULATE)
            d = tl.load(dy + row * dy_row + column * dy_column, mask=inside, other=0.0).to(ACCUMULATE)
            square = value * value
            threes += d * (square * value * rstd_3)
            twos += d * (square * rstd_2)
            ones += d * (value * rstd_1)
            all_d += d
        sum_3 = tl.sum(threes, axis=0)
        sum_2 = tl.sum(twos, axis=0)
        sum_1 = tl.sum(ones, axis=0)
        part_3 += sum_3
        part_2 += sum_2
        part_1 += sum_1
        part_b += tl.sum(all_d, axis=0)
        mean_3 = divide(sum_3, count)
        mean_2 = divide(sum_2, count)
        mean_1 = divide(sum_1, count)
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK).to(tl.int64)
            inside = column < columns
            value = tl.load(x + row * x_row + column * x_column, mask=inside, other=0.0).to(ACCUMULATE)
            d = tl.load(dy + row * dy_row + column * dy_column, mask=inside, other=0.0).to(ACCUMULATE)
            square = value * value
            of_3 = (d - square * value * rstd_3 * mean_3) * rstd_3 * w_3 * (3.0 * square)
            of_2 = (d - square * rstd_2 * mean_2) * rstd_2 * w_2 * (2.0 * value)
            of_1 = (d - value * rstd_1 * mean_1) * rstd_1 * w_1
            tl.store(dx + row * columns + column, of_3 + of_2 + of_1, mask=inside)
    if parts_dw is not None:
        tl.store(parts_dw + 3 * program, part_3)
        tl.store(parts_dw + 3 * program + 1, part_2)
        tl.store(parts_dw + 3 * program + 2, part_1)
    if parts_db is not None:
        tl.store(parts_db + program, part_b)


class _PolyNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, columns, eps):
        rows = input.numel() // columns if columns else 0
        statistics, accumulate = skeleton.accumulator(input.dtype)
        output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
        rstds = torch.empty(rows, 3, dtype=statistics, device=input.device)
        x = input.reshape(rows, columns)  # a view where the strides allow it
        if rows:
            block, warps = skeleton.row_tile(columns, input.dtype)
            with skeleton.on(input):
                _forward[(rows,)](
                    x, output, weight, bias, rstds, *x.stride(), skeleton.step(weight), columns,
                    skeleton.scalar(eps, input), BLOCK=block, ACCUMULATE=accumulate, num_warps=warps,
                )  # fmt: skip
        ctx.save_for_backward(input, weight, bias, rstds)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        saved, weight, bias, rstds = ctx.saved_tensors
        rows = len(rstds)
        grad_input = torch.empty(saved.shape, dtype=saved.dtype, device=saved.device)
        sums = [
            skeleton.sum_over(rows, v.shape, v.dtype, saved.device) if needed else None
            for v, needed in zip((weight, bias), ctx.needs_input_grad[1:3], strict=True)
        ]
        if not rows:
            return grad_input, *sums, None, None
        columns = saved.numel() // rows
        x, dy = saved.reshape(rows, columns), grad_output.reshape(rows, columns)
        programs, chunk = skeleton.chunks(rows, columns)
        widths = [3, 1]
        parts = [
            None if v is None else rstds.new_empty(programs, n) for v, n in zip(sums, widths, strict=True)
        ]
        block, warps = skeleton.row_tile(columns, x.dtype)
        with skeleton.on(x):
            _backward[(programs,)](
                grad_input, dy, x, weight, rstds, *parts, *dy.stride(), *x.stride(), skeleton.step(weight),
                rows, columns, chunk, BLOCK=block, ACCUMULATE=skeleton.accumulator(x.dtype)[1],
                num_warps=warps,
            )  # fmt: skip
            for part, out, width in zip(parts, sums, widths, strict=True):
                skeleton.join_parts([(part, out)], programs, width)
        return grad_input, *sums, None, None


@subject(
    op="poly_norm",
    language="triton",
    source=SOURCE,
    formula="canonical",
    accumulates="float32",
    dtypes=skeleton.DTYPES,
    trees=skeleton.TREES,
    mean_contraction="none",  # means end in an IEEE division, which no compiler contracts
    divide_by_n="division",
    # The sum of sixth powers stays finite.
    domain=Domain(max_abs=1e5, parameter_dtypes=skeleton.PARAMETER_DTYPES),
    guarantees=skeleton.GUARANTEES,
)
def poly_norm_triton(input, normalized_shape, weight, bias, eps=1e-6):
    columns = skeleton.normalized_columns("poly_norm", input, normalized_shape)
    skeleton.refuse_vectors(input, (3,), weight=weight)
    skeleton.refuse_vectors(input, (1,), bias=bias)
    return _PolyNorm.apply(input, weight, bias, columns, float(eps))
