"""Exact sums in float64: error-free extraction.

sigma = 2**(e + m) with |p| < 2**e and 2**m >= count + 2 cuts every summand at the same bit:
q = (sigma + p) - sigma and p - q are exact, and the q, multiples of 2**-53 sigma and at most
2**-m sigma each, add up exactly in any order. The remainders are treated likewise until they are 0.

Source: Rump, Ogita, Oishi, SIAM J. Sci. Comput. 31 (2008).
"""

from __future__ import annotations

import numpy as np

from verifier.arithmetic.error_free.numpy_or_torch import Arrays, Kit
from verifier.arithmetic.formats import Array

_Numbers = np.ndarray[tuple[int, ...], np.dtype[np.intp]]
SMALLEST = 2.0**-960
"""Remainders are multiples of the last bit of a summand, 2**-952 or more within the stated range."""


def cutter(kit: Kit, largest: Arrays, count: int) -> Arrays:
    """Return sigma for summands of magnitude at most `largest` (at most 2**900), `count` of them."""
    margin = (count + 1).bit_length()  # 2**margin >= count + 2
    return kit.floats(((kit.bits(largest) >> 52) + (1 + margin)) << 52)


def exact_parts(kit: Kit, summands: Arrays) -> Array:
    """Return floats, (passes, rows), whose exact sum over the passes is the exact sum of each row.

    summands: (rows, columns), finite, nonzero ones from 2**-900 to 2**900 in magnitude.

    Raises:
        ArithmeticError: a summand is so small that a remainder would be subnormal.

    """
    rows, columns = summands.shape
    passes: list[Array] = []
    active: _Numbers | None = None
    while columns:
        largest = kit.magnitude(summands)
        open_rows = kit.host(largest) > 0
        if not open_rows.any():
            break
        if kit.host(largest)[open_rows].min() < SMALLEST:
            raise ArithmeticError("summands below 2**-900 cannot be cut")
        if 2 * int(open_rows.sum()) < open_rows.size:
            active = np.flatnonzero(open_rows) if active is None else active[open_rows]
            keep = kit.device(np.flatnonzero(open_rows))
            summands, largest = summands[keep], largest[keep]
        sigma = cutter(kit, largest, columns)[:, None]
        cut = (sigma + summands) - sigma
        summands = summands - cut
        passes.append(_spread(kit.host(cut.sum(1)), active, rows))
    return np.array(passes).reshape(-1, rows)


def _spread(values: Array, active: _Numbers | None, rows: int) -> Array:
    if active is None:
        return values
    spread = np.zeros(rows)
    spread[active] = values
    return spread
