"""What the shifted bounds know of z = x - s, where s is one element of the row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verifier.arithmetic.formats import INFLATION, Array
from verifier.bounds.variance.options import ShiftedBy
from verifier.bounds.variance.row_terms import RowTerms

_MEAN_ERROR = 2.0**-52
"""`mean` is the float64 nearest the exact mean: half an ulp off, 2**-53 of it, and INFLATION times that."""


@dataclass(frozen=True, kw_only=True)
class Shifted:
    """Bounds on the exact shifted elements, (rows,): `offset` >= |mean - s|, `square`, `absolute`."""

    offset: Array
    square: Array
    absolute: Array


def shifted(t: RowTerms) -> Shifted:
    """Return the bounds for the declared element."""
    rows = t.rows
    if not rows.count:
        return Shifted(offset=t.sigma, square=t.sigma, absolute=t.sigma)
    index = t.claim.chosen(ShiftedBy).shift_index
    if not -rows.count <= index < rows.count:  # no such element: no theorem
        nothing = np.full_like(t.sigma, np.inf)
        return Shifted(offset=nothing, square=nothing, absolute=nothing)
    shift = rows.values[:, index]
    # the element and the mean, each as it is read, are off by `flush`
    offset = np.abs(rows.mean - shift) * INFLATION + _MEAN_ERROR * np.abs(rows.mean) + 2.0 * t.flush
    square = (t.variance + offset**2) * INFLATION
    absolute = np.minimum(np.sqrt(square), t.mean_deviation + offset) * INFLATION
    return Shifted(offset=offset, square=square, absolute=absolute)
