"""The elements of rows in plain float64 with a certified radius.

Errors, with u = 2**-53 and all constants rounded up (h = normalized, p = h * projection):
x - mean in two steps errs by 2 u |x - mean| + q, q = u |mean1| + mean_error, which rstd (1.01 u) and
one product turn into 4.02 u |h| + q rstd (without a mean: 2.02 u |h|). Each later product adds
1 u of itself plus what its factors carry, each sum 1 u of itself.
"""

from __future__ import annotations

from verifier.oracle.arrays import Values
from verifier.oracle.enclosure import UNIT
from verifier.oracle.fast_constants import FLOOR, PUBLISHED, FastConstants
from verifier.oracle.rows import Rows

Part = tuple[Values, Values | None, Values]
"""(high, low or None, radius)."""


def elements(rows: Rows, constants: FastConstants) -> dict[str, Part]:
    """Return output, normalized and, with grad_output, grad_input, by name."""
    relative = (4.02 if rows.centred else 2.02) * UNIT
    normalized, carried = _normalized(rows, constants)
    radius = abs(normalized)
    radius *= relative
    radius += carried + PUBLISHED
    found: dict[str, Part] = {"normalized": (normalized, None, radius)}
    found["output"] = _output(rows, found["normalized"], carried, relative)
    if rows.grad_output is not None:
        found["grad_input"] = _grad_input(rows, constants, normalized, carried=carried, relative=relative)
    return found


def _normalized(rows: Rows, constants: FastConstants) -> tuple[Values, Values]:
    """Return h and the part of its error that does not scale with it, (rows, 1)."""
    if not rows.centred:
        return rows.x * constants.rstd[0], 0.0 * constants.rstd[0] + FLOOR
    deviation = rows.x - constants.mean[0]
    deviation -= constants.mean[1]
    deviation *= constants.rstd[0]
    slack = 1.01 * UNIT * abs(constants.mean[1]) + abs(constants.mean[2]) + constants.mean_error
    return deviation, (slack + FLOOR) * abs(constants.rstd[0]) * 1.001 + FLOOR


def _output(rows: Rows, normalized: Part, carried: Values, relative: float) -> Part:
    output, radius = normalized[0], normalized[2]
    if rows.weight is not None:
        output = output * rows.weight
        radius = abs(output)
        radius *= relative + 1.02 * UNIT
        radius += (1.001 * carried) * abs(rows.weight)
        radius += PUBLISHED
    if rows.bias is not None:
        output = output + rows.bias
        radius = radius + (1.01 * UNIT) * abs(output)
    return output, None, radius


def _grad_input(
    rows: Rows, constants: FastConstants, normalized: Values, *, carried: Values, relative: float
) -> Part:
    gradient: Values = rows.grad_output if rows.weight is None else rows.grad_output * rows.weight
    rounded = not rows.narrow and rows.weight is not None
    rstd = abs(constants.rstd[0])
    if rows.constant_statistics:
        found = gradient * constants.rstd[0]
        radius = abs(found)
        radius *= 3.1 * UNIT
        return found, None, radius + (FLOOR * rstd + PUBLISHED)
    product = normalized * constants.projection[0]
    # projection errs by 1.01 u, the product by 1 u, and adding offset by 1 u of |product| + |offset|
    radius = abs(product)
    radius *= (relative + 3.06 * UNIT) * 1.001 * rstd
    product += constants.offset[0]
    found = gradient - product
    found *= constants.rstd[0]
    offset_slack = 1.03 * UNIT * abs(constants.offset[0]) + abs(constants.offset[1]) + constants.offset_error
    fixed = carried * abs(constants.projection[0]) + offset_slack + FLOOR
    radius += fixed * (1.001 * rstd) + PUBLISHED
    radius += (3.1 * UNIT) * abs(found)
    if rounded:
        radius += (1.02 * UNIT * rstd) * abs(gradient)
    return found, None, radius
