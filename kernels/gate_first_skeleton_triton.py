"""Norms of what is gated in Triton, one program a row, forward and backward, for any layout: no subject.

Normalized is u = input * gate * sigmoid(gate) (SILU) or input * sigmoid(gate). It is made in fp32 and not
rounded to less: each sweep over a row makes it anew, from the same bits. CENTRED says whether a mean is taken
away, as a layer norm does, which names the function that computes it (MEAN).
Backward: a program takes one row, for the gradients of input and gate; for those of weight and bias others
take each a chunk of rows, as gate_skeleton_triton.py says.
"""

from pathlib import Path

import triton
import triton.language as tl

from verifier import load

gates = load(Path(__file__).with_name("gate_skeleton_triton.py")).module
skeleton = gates.skeleton
divide, root, step, sums = skeleton.divide, skeleton.root, skeleton.step, skeleton.sums
product, logistic, affine, gate_slope = skeleton.product, gates.logistic, gates.affine, gates.gate_slope

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
def mean_of_row(
    x, gate, x_column, gate_column, columns, SILU: tl.constexpr, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr
):  # fmt: skip
    lanes = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        _, _, _, _, u = _tile(x, gate, x_column, gate_column, column, column < columns, SILU, ACCUMULATE)
        lanes += u
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
        mean = MEAN(x, gate, x_column, gate_column, columns, SILU, BLOCK, ACCUMULATE)
        tl.store(means + row, mean)
    lanes = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        _, _, _, _, u = _tile(x, gate, x_column, gate_column, column, inside, SILU, ACCUMULATE)
        if MEAN is not None:
            u = tl.where(inside, u - mean, 0.0)  # a masked lane would add mean^2
        lanes += u * u
    rstd = divide(tl.full((), 1.0, ACCUMULATE), root(divide(tl.sum(lanes, axis=0), count) + eps))
    tl.store(rstds + row, rstd)
    # Last sweep: the output.
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        _, _, _, _, u = _tile(x, gate, x_column, gate_column, column, inside, SILU, ACCUMULATE)
        if MEAN is not None:
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
            slope = gate_slope(z, sigmoid, SILU)
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


def _launch_rows(gradients, read, parts, strides, rows, columns, programs, chunk, constants):
    if any(gradient is not None for gradient in gradients):
        _backward_input[(rows,)](*gradients, *read, *strides, columns, **constants)
    return parts


DESIGN = gates.GateDesign(
    forward=_forward,
    rows=_launch_rows,
    columns=_backward_columns,
    reads_bias=False,
    returns_statistics=False,
)


def gate_first_norm(op, input, gate, normalized_shape, weight, bias, eps, *, mean_of, silu):
    """Normalizes the gated input over its last dimensions; returns the output.

    mean_of: `mean_of_row`, or None for a norm that takes no mean away.
    """
    return gates.norm_with_gate(
        op, input, gate, normalized_shape, weight, bias, eps, mean_of=mean_of, silu=silu, design=DESIGN
    )
