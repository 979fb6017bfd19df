"""Gated norms in Triton, one program a row, forward and backward, for any layout: no subject.

The output of the norm is multiplied by gate * sigmoid(gate) (SILU) or by sigmoid(gate), and rounded then.
CENTRED says whether a mean is taken away, as a layer norm does, which names the function that computes it
(MEAN).
Backward: a program takes a chunk of rows that fit one tile, for all gradients; longer rows go one to a
program, tile by tile, for the gradients of input and gate, and others sum those of weight and bias, as
gate_skeleton_triton.py says.
"""

from pathlib import Path

import triton
import triton.language as tl

from verifier import load

gates = load(Path(__file__).with_name("gate_skeleton_triton.py")).module
skeleton = gates.skeleton
divide, root, step, sums = skeleton.divide, skeleton.root, skeleton.step, skeleton.sums
logistic, affine, gate_slope = gates.logistic, gates.affine, gates.gate_slope

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
    slope = gate_slope(z, logistic(z), SILU)
    tl.store(dgate + column, d * out * slope, mask=inside)


@triton.jit(do_not_specialize=["rows", "chunk"])
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


def _launch_rows(gradients, read, parts, strides, rows, columns, programs, chunk, constants):
    if columns <= constants["BLOCK"]:
        _backward_rows[(programs,)](*gradients, *read, *parts, *strides, rows, columns, chunk, **constants)
        return []
    _backward_input[(rows,)](*gradients, *read, *strides, columns, **constants)
    return parts


DESIGN = gates.GateDesign(
    forward=_forward,
    rows=_launch_rows,
    columns=_backward_columns,
    reads_bias=True,  # the gradient of a gate is that of the output times the norm with its bias
    returns_statistics=True,
)


def gated_norm(op, input, gate, normalized_shape, weight, bias, eps, *, mean_of, silu):
    """Normalizes over the last dimensions and multiplies by the gate; returns the output and statistics.

    mean_of: `mean_of_row`, or None for a norm that takes no mean away.
    """
    return gates.norm_with_gate(
        op, input, gate, normalized_shape, weight, bias, eps, mean_of=mean_of, silu=silu, design=DESIGN
    )
