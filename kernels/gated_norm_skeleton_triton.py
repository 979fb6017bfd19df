"""Gated norms in Triton, one program a row, forward and backward, for any layout: no subject.

The output of the norm is multiplied by gate * sigmoid(gate) (SILU) or by sigmoid(gate), and rounded then.
CENTRED says whether a mean is taken away, as a layer norm does, which names the function that computes it
(MEAN).
Backward: the norm and the gate are computed again in fp32 from the input, the gate and the row's saved
statistics. A program takes a fixed chunk of rows and keeps its part of the weight's and bias's gradients in
fp32; a second kernel joins the parts in a fixed order, so there is no lock and no atomic, and the bits do not
change between runs.
"""

from pathlib import Path

import torch
import triton
import triton.language as tl

from verifier import load

gates = load(Path(__file__).with_name("gate_skeleton_triton.py")).module
skeleton = gates.skeleton
divide, root, step, sums = skeleton.divide, skeleton.root, skeleton.step, skeleton.sums
logistic, affine = gates.logistic, gates.affine

DTYPES = gates.DTYPES


@triton.jit
def mean_of_row(x, x_column, columns, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr):
    lanes = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        lanes += tl.load(x + column * x_column, mask=column < columns, other=0.0).to(ACCUMULATE)
    return divide(tl.sum(lanes, axis=0), tl.cast(columns, ACCUMULATE))


@triton.jit
def _forward(
    x, gate, y, weight, bias, means, rstds, x_row, x_column, gate_row, gate_column, weight_step, bias_step,
    columns, eps, MEAN: tl.constexpr, SILU: tl.constexpr, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x += row * x_row
    gate += row * gate_row
    y += row * columns
    count = tl.cast(columns, ACCUMULATE)
    if rstds.dtype.element_ty == tl.float64:
        eps = tl.load(eps)  # a Python float reaches a kernel as fp32
    mean = tl.full((), 0.0, ACCUMULATE)
    if MEAN is not None:
        mean = MEAN(x, x_column, columns, BLOCK, ACCUMULATE)
        tl.store(means + row, mean)
    lanes = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        value = tl.load(x + column * x_column, mask=inside, other=0.0).to(ACCUMULATE)
        if MEAN is not None:
            value = tl.where(inside, value - mean, 0.0)  # a masked lane would add mean^2
        lanes += value * value
    rstd = divide(tl.full((), 1.0, ACCUMULATE), root(divide(tl.sum(lanes, axis=0), count) + eps))
    tl.store(rstds + row, rstd)
    # Last sweep: the output.
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        value = tl.load(x + column * x_column, mask=inside, other=0.0).to(ACCUMULATE)
        if MEAN is not None:
            value = value - mean
        out = affine(value * rstd, weight, bias, column, inside, weight_step, bias_step, ACCUMULATE)
        z = tl.load(gate + column * gate_column, mask=inside, other=0.0).to(ACCUMULATE)
        if SILU:
            out *= z
        tl.store(y + column, out * logistic(z), mask=inside)


@triton.jit
def _tile(
    dy, x, gate, weight, mean, rstd, dy_column, x_column, gate_column, weight_step, column, inside,
    CENTRED: tl.constexpr, SILU: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Reads a tile: the gradient of the output, that of the norm, the normalized row, what reaches it."""
    d = tl.load(dy + column * dy_column, mask=inside, other=0.0).to(ACCUMULATE)
    hat = tl.load(x + column * x_column, mask=inside, other=0.0).to(ACCUMULATE)
    if CENTRED:
        hat = tl.where(inside, hat - mean, 0.0)
    hat *= rstd
    z = tl.load(gate + column * gate_column, mask=inside, other=0.0).to(ACCUMULATE)
    of_norm = d * logistic(z)
    if SILU:
        of_norm *= z
    g = of_norm
    if weight is not None:
        g = of_norm * tl.load(weight + column * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
    return d, of_norm, hat, g, z


@triton.jit
def _store_gate(
    dgate, d, hat, z, weight, bias, column, inside, weight_step, bias_step,
    SILU: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """The gradient of the gate: that of the output times the norm times the slope of the gate's function."""
    out = affine(hat, weight, bias, column, inside, weight_step, bias_step, ACCUMULATE)
    sigmoid = logistic(z)
    slope = sigmoid * (1.0 - sigmoid)
    if SILU:
        slope = sigmoid + z * slope
    tl.store(dgate + column, d * out * slope, mask=inside)


@triton.jit
def _backward_rows(
    dx, dgate, dy, x, gate, weight, bias, means, rstds, parts_dw, parts_db, dy_row, dy_column, x_row,
    x_column, gate_row, gate_column, weight_step, bias_step, rows, columns, chunk,
    CENTRED: tl.constexpr, SILU: tl.constexpr, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes `chunk` rows, each within one tile: their gradients, and one part of dw and db."""
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK).to(tl.int64)
    inside = column < columns
    count = tl.cast(columns, ACCUMULATE)
    part_dw = tl.zeros((BLOCK,), ACCUMULATE)
    part_db = tl.zeros((BLOCK,), ACCUMULATE)
    for row in range(program * chunk, tl.minimum((program + 1) * chunk, rows)):
        rstd = tl.load(rstds + row)
        mean = tl.load(means + row) if CENTRED else rstd
        d, of_norm, hat, g, z = _tile(
            dy + row * dy_row, x + row * x_row, gate + row * gate_row, weight, mean, rstd, dy_column,
            x_column, gate_column, weight_step, column, inside, CENTRED, SILU, ACCUMULATE,
        )  # fmt: skip
        if CENTRED:
            along_hat, plain = sums(hat * g, g, axis=0)
            through = hat * divide(along_hat, count) + divide(plain, count)
        else:
            through = hat * divide(tl.sum(hat * g, axis=0), count)
        if dx is not None:
            tl.store(dx + row * columns + column, (g - through) * rstd, mask=inside)
        if dgate is not None:
            _store_gate(
                dgate + row * columns, d, hat, z, weight, bias, column, inside, weight_step, bias_step,
                SILU, ACCUMULATE,
            )  # fmt: skip
        part_dw += of_norm * hat
        part_db += of_norm
    if parts_dw is not None:
        tl.store(parts_dw + program * columns + column, part_dw, mask=inside)
    if parts_db is not None:
        tl.store(parts_db + program * columns + column, part_db, mask=inside)


@triton.jit
def _backward_input(
    dx, dgate, dy, x, gate, weight, bias, means, rstds, dy_row, dy_column, x_row, x_column, gate_row,
    gate_column, weight_step, bias_step, columns,
    CENTRED: tl.constexpr, SILU: tl.constexpr, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes one row of any width, tile by tile: the gradients of input and gate."""
    row = tl.program_id(0).to(tl.int64)
    dy += row * dy_row
    x += row * x_row
    gate += row * gate_row
    count = tl.cast(columns, ACCUMULATE)
    rstd = tl.load(rstds + row)
    mean = tl.load(means + row) if CENTRED else rstd
    sum_hat_g = tl.zeros((BLOCK,), ACCUMULATE)
    sum_g = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        _, _, hat, g, _ = _tile(
            dy, x, gate, weight, mean, rstd, dy_column, x_column, gate_column, weight_step, column,
            column < columns, CENTRED, SILU, ACCUMULATE,
        )  # fmt: skip
        sum_hat_g += hat * g
        sum_g += g
    along_hat, plain = sums(sum_hat_g, sum_g, axis=0)
    c1, c2 = divide(along_hat, count), divide(plain, count)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        d, _, hat, g, z = _tile(
            dy, x, gate, weight, mean, rstd, dy_column, x_column, gate_column, weight_step, column, inside,
            CENTRED, SILU, ACCUMULATE,
        )  # fmt: skip
        through = hat * c1
        if CENTRED:
            through += c2
        if dx is not None:
            tl.store(dx + row * columns + column, (g - through) * rstd, mask=inside)
        if dgate is not None:
            _store_gate(
                dgate + row * columns, d, hat, z, weight, bias, column, inside, weight_step, bias_step,
                SILU, ACCUMULATE,
            )  # fmt: skip


@triton.jit
def _backward_columns(
    dy, x, gate, means, rstds, parts_dw, parts_db, dy_row, dy_column, x_row, x_column, gate_row, gate_column,
    rows, columns, chunk,
    CENTRED: tl.constexpr, SILU: tl.constexpr, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
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
        _, of_norm, hat, _, _ = _tile(
            dy + row * dy_row, x + row * x_row, gate + row * gate_row, None, mean, rstd, dy_column, x_column,
            gate_column, 0, column, inside, CENTRED, SILU, ACCUMULATE,
        )  # fmt: skip
        part_dw += of_norm * hat
        part_db += of_norm
    if parts_dw is not None:
        tl.store(parts_dw + program * columns + column, part_dw, mask=inside)
    if parts_db is not None:
        tl.store(parts_db + program * columns + column, part_db, mask=inside)


class _GatedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, gate, weight, bias, columns, eps, mean_of, silu):
        rows = input.numel() // columns if columns else 0
        statistics, accumulate = skeleton.accumulator(input.dtype)
        output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
        rstd = torch.empty(rows, dtype=statistics, device=input.device)
        mean = torch.empty_like(rstd) if mean_of else None
        x, z = input.reshape(rows, columns), gate.reshape(rows, columns)
        w, b = (None if vector is None else vector.reshape(columns) for vector in (weight, bias))
        if rows:
            block, warps = skeleton.row_tile(columns, input.dtype)
            with skeleton.on(input):
                _forward[(rows,)](
                    x, z, output, w, b, mean, rstd, *x.stride(), *z.stride(), step(w), step(b), columns,
                    skeleton.scalar(eps, input), MEAN=mean_of, SILU=silu, BLOCK=block,
                    ACCUMULATE=accumulate, num_warps=warps,
                )  # fmt: skip
        ctx.save_for_backward(input, gate, weight, bias, mean, rstd)
        ctx.silu = silu
        found = (output, mean, rstd) if mean_of else (output, rstd)
        ctx.mark_non_differentiable(*found[1:])
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output, *_):
        x, gate, weight, bias, mean, rstd = ctx.saved_tensors
        rows = rstd.numel()
        columns = x.numel() // rows if rows else 0
        grad_input, grad_gate = (
            torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device) if needed else None
            for tensor, needed in zip((x, gate), ctx.needs_input_grad[:2], strict=True)
        )
        parameters = [
            skeleton.sum_over(rows, like.shape, like.dtype, like.device) if needed else None
            for like, needed in zip((weight, bias), ctx.needs_input_grad[2:4], strict=True)
        ]
        if rows:
            tensors = [tensor.reshape(rows, columns) for tensor in (grad_output, x, gate)]
            vectors = [None if vector is None else vector.reshape(columns) for vector in (weight, bias)]
            with skeleton.on(x):
                _launch_backward((grad_input, grad_gate), parameters, tensors, vectors, mean, rstd, ctx.silu)
        return grad_input, grad_gate, *parameters, None, None, None, None


def _launch_backward(gradients, parameters, tensors, vectors, mean, rstd, silu):
    rows, columns = tensors[1].shape
    dtype = tensors[1].dtype
    block, warps = skeleton.row_tile(columns, dtype)
    programs, chunk = skeleton.chunks(rows, columns)
    parts = [None if out is None else rstd.new_empty(programs, columns) for out in parameters]
    strides = [stride for tensor in tensors for stride in tensor.stride()]
    constants = {"CENTRED": mean is not None, "SILU": silu, "ACCUMULATE": skeleton.accumulator(dtype)[1]}
    if columns <= block:
        _backward_rows[(programs,)](
            *gradients, *tensors, *vectors, mean, rstd, *parts, *strides, *map(step, vectors), rows, columns,
            chunk, **constants, BLOCK=block, num_warps=warps,
        )  # fmt: skip
    else:
        _backward_input[(rows,)](
            *gradients, *tensors, *vectors, mean, rstd, *strides, *map(step, vectors), columns,
            **constants, BLOCK=block, num_warps=warps,
        )  # fmt: skip
        if any(part is not None for part in parts):
            _backward_columns[(triton.cdiv(columns, 128), programs)](
                *tensors, mean, rstd, *parts, *strides, rows, columns, chunk, **constants, BLOCK=128,
            )  # fmt: skip
    skeleton.join_parts(zip(parts, parameters, strict=True), programs, columns)


def gated_norm(op, input, gate, normalized_shape, weight, bias, eps, *, mean_of, silu):
    """Normalizes over the last dimensions and multiplies by the gate; returns the output and statistics.

    mean_of: `mean_of_row`, or None for a norm that takes no mean away.
    """
    columns = skeleton.normalized_columns(op, input, normalized_shape, weight=weight, bias=bias)
    gates.refuse_gate(op, input, gate)
    return _GatedNorm.apply(input, gate, weight, bias, columns, float(eps), mean_of, silu)
