"""The elements of rows in plain float64 with a certified radius.

With u = 2**-53, h = normalized, p = h * projection: x - mean in two steps errs by 2 u |x - mean| + q,
q = u |mean1| + |mean2| + mean_error, which rstd (1.01 u) and one product turn into 4.01 u |h| + q rstd. Each
later product adds 1 u of itself plus what its factors err by, each sum 1 u of itself. The constants below are
such sums, rounded up to leave 0.01 u or more for higher orders: products of errors (at most 2**8 u**2),
|exact| taken as |result| (2**8 u**2) and 2**5 roundings of the radius itself (2**9 u**2) are below 2**-43 u.
"""

from __future__ import annotations

from verifier.arithmetic.error_free.double_double import PASSED_ON
from verifier.arithmetic.error_free.numpy_or_torch import Arrays
from verifier.oracle.enclosure import UNIT
from verifier.oracle.rows.fast_constants import FLOOR, PUBLISHED, FastConstants
from verifier.oracle.rows.operands import Rows

Part = tuple[Arrays, Arrays | None, Arrays]
"""(high, low or None, radius)."""

CENTRED_ERROR = 4.02
"""h, in u: two subtractions (2), rstd (1.01), a product (1)."""
UNCENTRED_ERROR = 2.02
"""h without a mean, in u: rstd (1.01), a product (1)."""
MEAN_ERROR = 1.01
"""x - mean, in u of |mean1|: x - mean0, which is rounded first, is larger than x - mean by that much."""
PRODUCT_ERROR = 1.02
"""One product, in u (1)."""
SUM_ERROR = 1.01
"""One sum, in u (1)."""
INNER_ERROR = 3.06
"""p + offset beyond h, in u of p: projection (1.01), the product (1), the sum's share of |p| (1)."""
OFFSET_ERROR = 1.03
"""p + offset, in u of |offset|: the sum's share of it (1)."""
LAST_ERROR = 3.1
"""grad_input, in u: the difference (1) or, with constant statistics, grad_output * weight (1), rstd (1.01),
the product (1)."""


def elements(rows: Rows, constants: FastConstants) -> dict[str, Part]:
    """Return output, normalized and, with grad_output, grad_input, by name."""
    relative = (CENTRED_ERROR if rows.centred else UNCENTRED_ERROR) * UNIT
    normalized, passed_on = _normalized(rows, constants)
    radius = abs(normalized)
    radius *= relative
    radius += passed_on + PUBLISHED
    found: dict[str, Part] = {"normalized": (normalized, None, radius)}
    found["output"] = _output(rows, found["normalized"], passed_on, relative)
    if rows.grad_output is not None:
        found["grad_input"] = _grad_input(rows, constants, normalized, passed_on=passed_on, relative=relative)
    return found


def _normalized(rows: Rows, constants: FastConstants) -> tuple[Arrays, Arrays]:
    """Return h and the part of its error that does not scale with it, (rows, 1)."""
    if not rows.centred:
        return rows.x * constants.rstd[0], 0.0 * constants.rstd[0] + FLOOR
    deviation = rows.x - constants.mean[0]
    deviation -= constants.mean[1]
    deviation *= constants.rstd[0]
    slack = MEAN_ERROR * UNIT * abs(constants.mean[1]) + abs(constants.mean[2]) + constants.mean_error
    return deviation, (slack + FLOOR) * abs(constants.rstd[0]) * PASSED_ON + FLOOR


def _output(rows: Rows, normalized: Part, passed_on: Arrays, relative: float) -> Part:
    output, radius = normalized[0], normalized[2]
    if rows.weight is not None:
        output = output * rows.weight
        radius = abs(output)
        radius *= relative + PRODUCT_ERROR * UNIT
        radius += (PASSED_ON * passed_on) * abs(rows.weight)
        radius += PUBLISHED
    if rows.bias is not None:
        output = output + rows.bias
        radius = radius + (SUM_ERROR * UNIT) * abs(output)
    return output, None, radius


def _grad_input(
    rows: Rows,
    constants: FastConstants,
    normalized: Arrays,
    *,
    passed_on: Arrays,
    relative: float,
) -> Part:
    gradient: Arrays = rows.grad_output if rows.weight is None else rows.grad_output * rows.weight
    rounded = not rows.narrow and rows.weight is not None
    rstd = abs(constants.rstd[0])
    if rows.constant_statistics:
        found = gradient * constants.rstd[0]
        radius = abs(found)
        radius *= LAST_ERROR * UNIT
        return found, None, radius + (FLOOR * rstd + PUBLISHED)
    product = normalized * constants.projection[0]
    radius = abs(product)
    radius *= (relative + INNER_ERROR * UNIT) * PASSED_ON * rstd
    product += constants.offset[0]
    found = gradient - product
    found *= constants.rstd[0]
    offset_slack = OFFSET_ERROR * UNIT * abs(constants.offset[0]) + abs(constants.offset[1])
    offset_slack = offset_slack + constants.offset_error
    fixed = passed_on * abs(constants.projection[0]) + offset_slack + FLOOR
    radius += fixed * (PASSED_ON * rstd) + PUBLISHED
    radius += (LAST_ERROR * UNIT) * abs(found)
    if rounded:
        radius += (PRODUCT_ERROR * UNIT * rstd) * abs(gradient)
    return found, None, radius
