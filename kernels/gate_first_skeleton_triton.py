"""Norms of what is gated in Triton, one program a row, forward and backward, for any layout: no subject.

Normalized is u = input * gate * sigmoid(gate) (SILU) or input * sigmoid(gate). It is made in fp32 and not
rounded to less: each sweep over a row makes it anew, from the same bits. CENTRED says whether a mean is taken
away, as a layer norm does.
Backward: a program takes one row, for the gradients of input and gate. Another takes a fixed chunk of rows
and keeps its part of the weight's and bias's gradients in fp32; a last kernel joins the parts in a fixed
order, so there is no lock and no atomic, and the bits do not change between runs.
"""

from pathlib import Path

import torch
import triton
import triton.language as tl

from verifier import load

gates = load(Path(__file__).with_name("gate_skeleton_triton.py")).module
skeleton = gates.skeleton
divide, root, step, sums = skeleton.divide, skeleton.root, skeleton.step, skeleton.sums
product, logistic, affine = skeleton.product, gates.logistic, gates.affine

DTYPES = gates.DTYPES


@triton.jit
def _tile(
    x, gate, x_column, gate_column, column, inside, SILU: tl.constexpr, ACCUMULATE: tl.constexpr
):  # fmt: skip
    """Reads a tile: the input, the gate, its sigmoid, the function of the gate, and what is gated."""
    value = tl.load(x + column * x_column, mask=inside, other=0.0).to(ACCUMULATE)
    z = tl.load(gate + column * gate_column, mask=inside, other=0.0).to(ACCUMULATE)
    sigmoid = logistic(z)
    opened = z * sigmoid if SILU else sigmoid
    return value, z, sigmoid, opened, product(value, opened)


@triton.jit
def _forward(
    x, gate, y, weight, bias, means, rstds, x_row, x_column, gate_row, gate_column, weight_step, bias_step,
    columns, eps, CENTRED: tl.constexpr, SILU: tl.constexpr, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x += row * x_row
    gate += row * gate_row
    y += row * columns
    count = tl.cast(columns, ACCUMULATE)
    if rstds.dtype.element_ty == tl.float64:
        eps = tl.load(eps)  # a Python float reaches a kernel as fp32
    mean = tl.full((), 0.0, ACCUMULATE)
    if CENTRED:
        lanes = tl.zeros((BLOCK,), ACCUMULATE)
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK).to(tl.int64)
            _, _, _, _, u = _tile(x, gate, x_column, gate_column, column, column < columns, SILU, ACCUMULATE)
            lanes += u
        mean = divide(tl.sum(lanes, axis=0), count)
        tl.store(means + row, mean)
    lanes = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        _, _, _, _, u = _tile(x, gate, x_column, gate_column, column, inside, SILU, ACCUMULATE)
        if CENTRED:
            u = tl.where(inside, u - mean, 0.0)  # a masked lane would add mean^2
        lanes += u * u
    rstd = divide(tl.full((), 1.0, ACCUMULATE), root(divide(tl.sum(lanes, axis=0), count) + eps))
    tl.store(rstds + row, rstd)
    # Last sweep: the output.
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        _, _, _, _, u = _tile(x, gate, x_column, gate_column, column, inside, SILU, ACCUMULATE)
        if CENTRED:
            u = u - mean
        out = affine(u * rstd, weight, bias, column, inside, weight_step, bias_step, ACCUMULATE)
        tl.store(y + column, out, mask=inside)


@triton.jit
def _backward_input(
    dx, dgate, dy, x, gate, weight, means, rstds, dy_row, dy_column, x_row, x_column, gate_row, gate_column,
    weight_step, columns,
    CENTRED: tl.constexpr, SILU: tl.constexpr, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes one row of any width, tile by tile: the gradients of input and gate."""
    row = tl.program_id(0).to(tl.int64)
    x += row * x_row
    gate += row * gate_row
    dy += row * dy_row
    count = tl.cast(columns, ACCUMULATE)
    rstd = tl.load(rstds + row)
    mean = tl.load(means + row) if CENTRED else rstd
    sum_hat_g = tl.zeros((BLOCK,), ACCUMULATE)
    sum_g = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        _, _, _, _, hat = _tile(x, gate, x_column, gate_column, column, inside, SILU, ACCUMULATE)
        if CENTRED:
            hat = tl.where(inside, hat - mean, 0.0)
        hat *= rstd
        g = tl.load(dy + column * dy_column, mask=inside, other=0.0).to(ACCUMULATE)
        if weight is not None:
            w = tl.load(weight + column * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
            g = product(g, w)
        sum_hat_g += hat * g
        sum_g += g
    along_hat, plain = sums(sum_hat_g, sum_g, axis=0)
    c1, c2 = divide(along_hat, count), divide(plain, count)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        value, z, sigmoid, opened, hat = _tile(
            x, gate, x_column, gate_column, column, inside, SILU, ACCUMULATE
        )  # fmt: skip
        if CENTRED:
            hat = tl.where(inside, hat - mean, 0.0)
        hat *= rstd
        g = tl.load(dy + column * dy_column, mask=inside, other=0.0).to(ACCUMULATE)
        g = affine(g, weight, None, column, inside, weight_step, 0, ACCUMULATE)
        through = hat * c1
        if CENTRED:
            through += c2
        du = (g - through) * rstd
        if dx is not None:
            tl.store(dx + row * columns + column, du * opened, mask=inside)
        if dgate is not None:
            slope = sigmoid * (1.0 - sigmoid)
            if SILU:
                slope = sigmoid + z * slope
            tl.store(dgate + row * columns + column, du * value * slope, mask=inside)


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
        d = tl.load(dy + row * dy_row + column * dy_column, mask=inside, other=0.0).to(ACCUMULATE)
        if parts_dw is not None:
            _, _, _, _, u = _tile(
                x + row * x_row, gate + row * gate_row, x_column, gate_column, column, inside, SILU,
                ACCUMULATE,
            )  # fmt: skip
            if CENTRED:
                u = u - tl.load(means + row)
            part_dw += d * (u * tl.load(rstds + row))
        part_db += d
    if parts_dw is not None:
        tl.store(parts_dw + program * columns + column, part_dw, mask=inside)
    if parts_db is not None:
        tl.store(parts_db + program * columns + column, part_db, mask=inside)


class _GateFirstNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, gate, weight, bias, columns, eps, centred, silu):
        rows = input.numel() // columns if columns else 0
        statistics, accumulate = skeleton.accumulator(input.dtype)
        output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
        rstd = torch.empty(rows, dtype=statistics, device=input.device)
        mean = torch.empty_like(rstd) if centred else None
        x, z = input.reshape(rows, columns), gate.reshape(rows, columns)
        w, b = (None if vector is None else vector.reshape(columns) for vector in (weight, bias))
        if rows:
            block, warps = skeleton.row_tile(columns, input.dtype)
            with skeleton.on(input):
                _forward[(rows,)](
                    x, z, output, w, b, mean, rstd, *x.stride(), *z.stride(), step(w), step(b), columns,
                    skeleton.scalar(eps, input), CENTRED=centred, SILU=silu, BLOCK=block,
                    ACCUMULATE=accumulate, num_warps=warps,
                )  # fmt: skip
        ctx.save_for_backward(input, gate, weight, bias, mean, rstd)
        ctx.silu = silu
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        x, gate, weight, bias, mean, rstd = ctx.saved_tensors
        rows = rstd.numel()
        columns = x.numel() // rows if rows else 0
        gradients = [
            torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device) if needed else None
            for tensor, needed in zip((x, gate), ctx.needs_input_grad[:2], strict=True)
        ]
        parameters = [
            skeleton.sum_over(rows, like.shape, like.dtype, like.device) if needed else None
            for like, needed in zip((weight, bias), ctx.needs_input_grad[2:4], strict=True)
        ]
        if rows:
            tensors = [tensor.reshape(rows, columns) for tensor in (grad_output, x, gate)]
            w = None if weight is None else weight.reshape(columns)
            with skeleton.on(x):
                _launch_backward(gradients, parameters, tensors, w, mean, rstd, ctx.silu)
        return *gradients, *parameters, None, None, None, None


def _launch_backward(gradients, parameters, tensors, weight, mean, rstd, silu):
    rows, columns = tensors[1].shape
    dtype = tensors[1].dtype
    strides = [stride for tensor in tensors for stride in tensor.stride()]
    constants = {"CENTRED": mean is not None, "SILU": silu, "ACCUMULATE": skeleton.accumulator(dtype)[1]}
    if any(gradient is not None for gradient in gradients):
        block, warps = skeleton.row_tile(columns, dtype)
        _backward_input[(rows,)](
            *gradients, *tensors, weight, mean, rstd, *strides, step(weight), columns,
            **constants, BLOCK=block, num_warps=warps,
        )  # fmt: skip
    if any(parameter is not None for parameter in parameters):
        programs, chunk = skeleton.chunks(rows, columns)
        parts = [None if out is None else rstd.new_empty(programs, columns) for out in parameters]
        _backward_columns[(triton.cdiv(columns, 128), programs)](
            *tensors, mean, rstd, *parts, *strides, rows, columns, chunk, **constants, BLOCK=128,
        )  # fmt: skip
        skeleton.join_parts(zip(parts, parameters, strict=True), programs, columns)


def gate_first_norm(op, input, gate, normalized_shape, weight, bias, eps, *, centred, silu):
    """Normalizes the gated input over its last dimensions; centred: takes its mean away."""
    columns = skeleton.normalized_columns(op, input, normalized_shape, weight=weight, bias=bias)
    gates.refuse_gate(op, input, gate)
    return _GateFirstNorm.apply(input, gate, weight, bias, columns, float(eps), centred, silu)
