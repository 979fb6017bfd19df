"""The elements of rows in double-double with a certified radius.

With U = u**2 = 2**-106, h = normalized = d * rstd, p = h * projection: each operation errs by its constant
in `double_double`, in U of its result, and what its operands err by is added. Errors that do not scale with h
(those of the mean, and underflow) are `passed_on` as absolute ones.
"""

from __future__ import annotations

from verifier.arithmetic.error_free import double_double
from verifier.arithmetic.error_free.double_double import PASSED_ON, Doubled
from verifier.arithmetic.error_free.numpy_or_torch import Arrays
from verifier.oracle.enclosure import UNIT
from verifier.oracle.rows.elements_float64 import Part
from verifier.oracle.rows.fast_constants import CONSTANT_ERROR, FLOOR, PUBLISHED, FastConstants
from verifier.oracle.rows.operands import Rows

UNIT2 = UNIT * UNIT
CENTRING_ERROR = 3.3
"""d = x - mean, in U of d: two roundings of the tail of x - mean0 (2), one of that of x - mean0 - mean1 (1);
each tail is at most 1.01 u |d|. The first is 0 unless |x - mean0| >= |mean0| / 2, and then |x - mean0| is at
most 1.01 |d|."""
MEAN_ERROR = 2.2
"""The same roundings, in u of |mean2|: it is among the operands of two (2); the rest is of higher order."""


def elements(rows: Rows, constants: FastConstants) -> dict[str, Part]:
    """Return output, normalized and, with grad_output, grad_input, by name."""
    normalized, passed_on, relative = _normalized(rows, constants)
    radius = abs(normalized[0])
    radius *= relative * UNIT2
    radius += passed_on + PUBLISHED
    halves = double_double.split(normalized[0])
    found: dict[str, Part] = {"normalized": (*normalized, radius)}
    found["output"] = _output(rows, found["normalized"], passed_on, relative, halves=halves)
    if rows.grad_output is not None:
        found["grad_input"] = _grad_input(
            rows, constants, normalized, passed_on=passed_on, relative=relative, halves=halves
        )
    return found


def _normalized(rows: Rows, constants: FastConstants) -> tuple[Doubled, Arrays, float]:
    """Return h, the part of its error that does not scale with it, and the one that does in U."""
    product = double_double.PRODUCT_ERROR + CONSTANT_ERROR + double_double.HIGHER_ORDER
    if not rows.centred:
        scaled = double_double.SCALED_ERROR + CONSTANT_ERROR + double_double.HIGHER_ORDER
        pair = double_double.scale(constants.rstd, rows.x, narrow=rows.narrow)
        return pair, 0.0 * constants.rstd[0] + FLOOR, scaled
    difference, tail = double_double.two_sum(rows.x, -constants.mean[0])
    high, low = double_double.two_sum(difference, -constants.mean[1])
    tail -= constants.mean[2]
    low += tail
    deviation = double_double.two_sum(high, low)
    slack = MEAN_ERROR * UNIT * abs(constants.mean[2]) + constants.mean_error + FLOOR
    passed_on = slack * abs(constants.rstd[0]) * PASSED_ON + FLOOR
    return double_double.multiply(deviation, constants.rstd), passed_on, CENTRING_ERROR + product


def _output(rows: Rows, normalized: Part, passed_on: Arrays, relative: float, *, halves: Doubled) -> Part:
    high, low, radius = normalized
    pair: Doubled = (high, low)
    if rows.weight is not None:
        pair = double_double.scale(pair, rows.weight, narrow=rows.narrow, halves=halves)
        radius = abs(pair[0])
        radius *= (relative + double_double.SCALED_ERROR + double_double.HIGHER_ORDER) * UNIT2
        radius += (PASSED_ON * passed_on) * abs(rows.weight)
        radius += PUBLISHED
    if rows.bias is not None:
        pair = double_double.shift(pair, rows.bias)
        radius = radius + ((double_double.SHIFTED_ERROR + double_double.HIGHER_ORDER) * UNIT2) * abs(pair[0])
    return (*pair, radius)


def _grad_input(
    rows: Rows,
    constants: FastConstants,
    normalized: Doubled,
    *,
    passed_on: Arrays,
    relative: float,
    halves: Doubled,
) -> Part:
    rstd = abs(constants.rstd[0])
    gradient = _gradient(rows)
    last = (double_double.PRODUCT_ERROR + CONSTANT_ERROR + double_double.HIGHER_ORDER_OF_CHAINS) * UNIT2
    if rows.constant_statistics:
        pair = _times(gradient, constants.rstd)
        return (*pair, abs(pair[0]) * last + (FLOOR * rstd + PUBLISHED))
    product = double_double.multiply(normalized, constants.projection, halves)
    # p errs as h, projection and the product do, and adding offset by so much of |p| and of |offset|
    own = relative + double_double.PRODUCT_ERROR + CONSTANT_ERROR + double_double.SUM_ERROR
    own += double_double.HIGHER_ORDER_OF_CHAINS
    radius = abs(product[0])
    radius *= (own * UNIT2) * (PASSED_ON * rstd)
    total = product
    if rows.centred:
        total = double_double.add(product, constants.offset)
    total = double_double.negative(total)
    high, low = gradient
    pair = double_double.shift(total, high) if low is None else double_double.add(total, gradient)
    pair = double_double.multiply(pair, constants.rstd)
    offset = (
        (double_double.SUM_ERROR + double_double.HIGHER_ORDER_OF_CHAINS) * UNIT2 * abs(constants.offset[0])
    )
    offset = offset + constants.offset_error
    fixed = passed_on * abs(constants.projection[0]) + offset + FLOOR
    radius += fixed * (PASSED_ON * rstd) + PUBLISHED
    # g - total by `add`, or by `shift`, which errs by less; then the product with rstd
    radius += (last + (double_double.SUM_ERROR + double_double.HIGHER_ORDER) * UNIT2) * abs(pair[0])
    return (*pair, radius)


def _gradient(rows: Rows) -> tuple[Arrays, Arrays | None]:
    """Return grad_output * weight exactly; the low part is None where one float64 holds it."""
    if rows.weight is None:
        return rows.grad_output, None
    if rows.narrow:
        return rows.grad_output * rows.weight, None
    return double_double.two_product(rows.grad_output, rows.weight)


def _times(value: tuple[Arrays, Arrays | None], factor: Doubled) -> Doubled:
    if value[1] is None:
        return double_double.scale(factor, value[0])
    return double_double.multiply((value[0], value[1]), factor)
