"""The elements of rows in double-double with a certified radius.

Errors, with U = u**2 = 2**-106 (h = normalized, p = h * projection): x - mean errs by 3.3 U relative
plus 2.2 u |mean2| + mean_error: the tail of x - mean0 is 0 whenever x - mean0 cancels, and
at most u |x - mean| times 1.01 otherwise. rstd (1.01 U) and one product (8.1 U) make 12.5 U |h|.
"""

from __future__ import annotations

from verifier.oracle import doubled
from verifier.oracle.arrays import Values
from verifier.oracle.doubled import Pair
from verifier.oracle.elements_float64 import Part
from verifier.oracle.enclosure import UNIT
from verifier.oracle.fast_constants import FLOOR, PUBLISHED, FastConstants
from verifier.oracle.rows import Rows

UNIT2 = UNIT * UNIT
CENTRING_ERROR = 3.3
CONSTANT_ERROR = 1.01
"""Relative error, in u**2, of rstd and projection as pairs: `FastConstants.usable_double`."""


def elements(rows: Rows, constants: FastConstants) -> dict[str, Part]:
    """Return output, normalized and, with grad_output, grad_input, by name."""
    normalized, carried, relative = _normalized(rows, constants)
    radius = abs(normalized[0])
    radius *= relative * UNIT2
    radius += carried + PUBLISHED
    halves = doubled.split(normalized[0])
    found: dict[str, Part] = {"normalized": (*normalized, radius)}
    found["output"] = _output(rows, found["normalized"], carried, relative, halves=halves)
    if rows.grad_output is not None:
        found["grad_input"] = _grad_input(
            rows, constants, normalized, carried=carried, relative=relative, halves=halves
        )
    return found


def _normalized(rows: Rows, constants: FastConstants) -> tuple[Pair, Values, float]:
    """Return h, the part of its error that does not scale with it, and the one that does in U."""
    product = doubled.PRODUCT_ERROR + CONSTANT_ERROR + 0.01
    if not rows.centred:
        scaled = doubled.SCALED_ERROR + CONSTANT_ERROR + 0.01
        pair = doubled.scale(constants.rstd, rows.x, narrow=rows.narrow)
        return pair, 0.0 * constants.rstd[0] + FLOOR, scaled
    difference, tail = doubled.two_sum(rows.x, -constants.mean[0])
    high, low = doubled.two_sum(difference, -constants.mean[1])
    tail -= constants.mean[2]
    low += tail
    deviation = doubled.two_sum(high, low)
    slack = 2.2 * UNIT * abs(constants.mean[2]) + constants.mean_error + FLOOR
    carried = slack * abs(constants.rstd[0]) * 1.001 + FLOOR
    return doubled.multiply(deviation, constants.rstd), carried, CENTRING_ERROR + product


def _output(rows: Rows, normalized: Part, carried: Values, relative: float, *, halves: Pair) -> Part:
    high, low, radius = normalized
    pair: Pair = (high, low)
    if rows.weight is not None:
        pair = doubled.scale(pair, rows.weight, narrow=rows.narrow, halves=halves)
        radius = abs(pair[0])
        radius *= (relative + doubled.SCALED_ERROR + 0.01) * UNIT2
        radius += (1.001 * carried) * abs(rows.weight)
        radius += PUBLISHED
    if rows.bias is not None:
        pair = doubled.shift(pair, rows.bias)
        radius = radius + ((doubled.SHIFTED_ERROR + 0.01) * UNIT2) * abs(pair[0])
    return (*pair, radius)


def _grad_input(
    rows: Rows, constants: FastConstants, normalized: Pair, *, carried: Values, relative: float, halves: Pair
) -> Part:
    rstd = abs(constants.rstd[0])
    gradient = _gradient(rows)
    last = (doubled.PRODUCT_ERROR + CONSTANT_ERROR + 0.1) * UNIT2
    if rows.constant_statistics:
        pair = _times(gradient, constants.rstd)
        return (*pair, abs(pair[0]) * last + (FLOOR * rstd + PUBLISHED))
    product = doubled.multiply(normalized, constants.projection, halves)
    own = relative + doubled.PRODUCT_ERROR + CONSTANT_ERROR + doubled.SUM_ERROR + 0.1
    radius = abs(product[0])
    radius *= (own * UNIT2) * (1.001 * rstd)
    total = product
    if rows.centred:
        total = doubled.add(product, constants.offset)
    total = doubled.negative(total)
    pair = doubled.shift(total, gradient[0]) if gradient[1] is None else doubled.add(total, gradient)
    pair = doubled.multiply(pair, constants.rstd)
    offset = (doubled.SUM_ERROR + 0.1) * UNIT2 * abs(constants.offset[0]) + constants.offset_error
    fixed = carried * abs(constants.projection[0]) + offset + FLOOR
    radius += fixed * (1.001 * rstd) + PUBLISHED
    radius += (last + (doubled.SUM_ERROR + 0.01) * UNIT2) * abs(pair[0])
    return (*pair, radius)


def _gradient(rows: Rows) -> tuple[Values, Values | None]:
    """Return grad_output * weight exactly; the low part is None where one float64 holds it."""
    if rows.weight is None:
        return rows.grad_output, None
    if rows.narrow:
        return rows.grad_output * rows.weight, None
    return doubled.two_product(rows.grad_output, rows.weight)


def _times(value: tuple[Values, Values | None], factor: Pair) -> Pair:
    if value[1] is None:
        return doubled.scale(factor, value[0])
    return doubled.multiply((value[0], value[1]), factor)
