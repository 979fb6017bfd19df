"""RMS normalization of input * gate * sigmoid(gate) in Triton, forward and backward, for any layout.

The product is made in fp32 and not rounded to less: each sweep over a row makes it anew, from the same bits.
Backward: a program takes a fixed chunk of rows and keeps its part of the weight's gradient in fp32; a second
kernel joins the parts in a fixed order, so there is no lock and no atomic, and the bits do not change between
runs.

A row that holds NaN comes out as NaN. Beyond |x| = 1e15 the squares may overflow in fp32, and so they may
where the gate is as large: the kernel makes no promise there.
"""

from pathlib import Path

import torch
import triton
import triton.language as tl

from verifier import Domain, Source, load, subject

SOURCE = Source(
    title="Mamba 2, RMSNormGated with norm_before_gate=False",
    author="Tri Dao, Albert Gu",
    url="https://github.com/state-spaces/mamba",
    licence="Apache-2.0",
    changed="written anew: every stride and rank, a missing weight, 64-bit offsets, rows of any length, fp32 "
    "parts in a fixed order",
)

skeleton = load(Path(__file__).with_name("row_norm_skeleton_triton.py")).module
divide, root = skeleton.divide, skeleton.root


@triton.jit
def _tile(x, gate, x_column, gate_column, column, inside, ACCUMULATE: tl.constexpr):
    """Reads a tile: both factors, and the sigmoid, which is 0 where its exponential overflows."""
    value = tl.load(x + column * x_column, mask=inside, other=0.0).to(ACCUMULATE)
    z = tl.load(gate + column * gate_column, mask=inside, other=0.0).to(ACCUMULATE)
    sigmoid = divide(tl.full(z.shape, 1.0, ACCUMULATE), 1.0 + tl.exp(-z))
    return value, z, sigmoid


@triton.jit
def _forward(
    x, gate, y, weight, rstds, x_row, x_column, gate_row, gate_column, weight_step, columns, eps,
    BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x += row * x_row
    gate += row * gate_row
    y += row * columns
    if rstds.dtype.element_ty == tl.float64:
        eps = tl.load(eps)  # a Python float reaches a kernel as fp32
    lanes = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        value, z, sigmoid = _tile(x, gate, x_column, gate_column, column, column < columns, ACCUMULATE)
        u = value * (z * sigmoid)
        lanes += u * u
    mean_square = divide(tl.sum(lanes, axis=0), tl.cast(columns, ACCUMULATE))
    rstd = divide(tl.full((), 1.0, ACCUMULATE), root(mean_square + eps))
    tl.store(rstds + row, rstd)
    # Second sweep: the output.
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        value, z, sigmoid = _tile(x, gate, x_column, gate_column, column, inside, ACCUMULATE)
        out = value * (z * sigmoid) * rstd
        if weight is not None:
            out *= tl.load(weight + column * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
        tl.store(y + column, out, mask=inside)


@triton.jit
def _backward_input(
    dx, dgate, dy, x, gate, weight, rstds, dy_row, dy_column, x_row, x_column, gate_row, gate_column,
    weight_step, columns, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes one row of any width, tile by tile: the gradients of input and gate."""
    row = tl.program_id(0).to(tl.int64)
    x += row * x_row
    gate += row * gate_row
    dy += row * dy_row
    rstd = tl.load(rstds + row)
    lanes = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        value, z, sigmoid = _tile(x, gate, x_column, gate_column, column, inside, ACCUMULATE)
        g = tl.load(dy + column * dy_column, mask=inside, other=0.0).to(ACCUMULATE)
        if weight is not None:
            g *= tl.load(weight + column * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
        lanes += value * (z * sigmoid) * rstd * g
    c1 = divide(tl.sum(lanes, axis=0), tl.cast(columns, ACCUMULATE))
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        value, z, sigmoid = _tile(x, gate, x_column, gate_column, column, inside, ACCUMULATE)
        g = tl.load(dy + column * dy_column, mask=inside, other=0.0).to(ACCUMULATE)
        if weight is not None:
            g *= tl.load(weight + column * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
        du = (g - value * (z * sigmoid) * rstd * c1) * rstd
        if dx is not None:
            tl.store(dx + row * columns + column, du * (z * sigmoid), mask=inside)
        if dgate is not None:
            slope = sigmoid + z * sigmoid * (1.0 - sigmoid)
            tl.store(dgate + row * columns + column, du * value * slope, mask=inside)


@triton.jit
def _backward_columns(
    dy, x, gate, rstds, parts_dw, dy_row, dy_column, x_row, x_column, gate_row, gate_column, rows, columns,
    chunk, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes `chunk` rows of one tile of columns: one part of dw."""
    program = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    part_dw = tl.zeros((BLOCK,), ACCUMULATE)
    for row in range(program * chunk, tl.minimum((program + 1) * chunk, rows)):
        value, z, sigmoid = _tile(
            x + row * x_row, gate + row * gate_row, x_column, gate_column, column, inside, ACCUMULATE
        )  # fmt: skip
        d = tl.load(dy + row * dy_row + column * dy_column, mask=inside, other=0.0).to(ACCUMULATE)
        part_dw += d * (value * (z * sigmoid) * tl.load(rstds + row))
    tl.store(parts_dw + program * columns + column, part_dw, mask=inside)


class _GatedRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, gate, weight, columns, eps):
        rows = input.numel() // columns if columns else 0
        statistics, accumulate = skeleton.accumulator(input.dtype)
        output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
        rstd = torch.empty(rows, dtype=statistics, device=input.device)
        x, z = input.reshape(rows, columns), gate.reshape(rows, columns)
        w = None if weight is None else weight.reshape(columns)
        if rows:
            block, warps = skeleton.row_tile(columns, input.dtype)
            with skeleton.on(input):
                _forward[(rows,)](
                    x, z, output, w, rstd, *x.stride(), *z.stride(), skeleton.step(w), columns,
                    skeleton.scalar(eps, input), BLOCK=block, ACCUMULATE=accumulate, num_warps=warps,
                )  # fmt: skip
        ctx.save_for_backward(input, gate, weight, rstd)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        x, gate, weight, rstd = ctx.saved_tensors
        rows = rstd.numel()
        columns = x.numel() // rows if rows else 0
        grad_input, grad_gate = (
            torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device) if needed else None
            for tensor, needed in zip((x, gate), ctx.needs_input_grad[:2], strict=True)
        )
        grad_weight = None
        if ctx.needs_input_grad[2]:
            grad_weight = skeleton.sum_over(rows, weight.shape, weight.dtype, x.device)
        if rows:
            tensors = [tensor.reshape(rows, columns) for tensor in (grad_output, x, gate)]
            with skeleton.on(x):
                _launch_backward((grad_input, grad_gate), grad_weight, tensors, weight, rstd)
        return grad_input, grad_gate, grad_weight, None, None


def _launch_backward(gradients, grad_weight, tensors, weight, rstd):
    rows, columns = tensors[1].shape
    w = None if weight is None else weight.reshape(columns)
    accumulate = skeleton.accumulator(tensors[1].dtype)[1]
    strides = [stride for tensor in tensors for stride in tensor.stride()]
    if any(gradient is not None for gradient in gradients):
        block, warps = skeleton.row_tile(columns, tensors[1].dtype)
        _backward_input[(rows,)](
            *gradients, *tensors, w, rstd, *strides, skeleton.step(w), columns,
            BLOCK=block, ACCUMULATE=accumulate, num_warps=warps,
        )  # fmt: skip
    if grad_weight is not None:
        programs, chunk = skeleton.chunks(rows, columns)
        parts = rstd.new_empty(programs, columns)
        _backward_columns[(triton.cdiv(columns, 128), programs)](
            *tensors, rstd, parts, *strides, rows, columns, chunk, BLOCK=128, ACCUMULATE=accumulate,
        )  # fmt: skip
        skeleton.join_parts([(parts, grad_weight)], programs, columns)


@subject(
    op="silu_gate_rms_norm",
    language="triton",
    source=SOURCE,
    formula="canonical",
    accumulates="float32",
    dtypes=("float16", "bfloat16", "float32"),
    trees=skeleton.TREES,
    divide_by_n="division",
    mean_contraction="none",  # the mean square ends in an IEEE division, which no compiler contracts
    domain=Domain(max_abs=1e15, parameter_dtypes=skeleton.PARAMETER_DTYPES),
    guarantees=skeleton.GUARANTEES,
)
def silu_gate_rms_norm_triton(input, gate, normalized_shape, weight=None, eps=1e-6):
    columns = skeleton.normalized_columns("silu_gate_rms_norm", input, normalized_shape, weight=weight)
    if gate.shape != input.shape or gate.dtype != input.dtype or gate.device != input.device:
        raise ValueError("silu_gate_rms_norm takes a gate of the shape, dtype and device of input.")
    return _GatedRMSNorm.apply(input, gate, weight, columns, float(eps))
