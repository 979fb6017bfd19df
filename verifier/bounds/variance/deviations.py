"""What the corrected two-pass bounds know of the deviations x - mean and of their sum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verifier.arithmetic.formats import INFLATION, Array
from verifier.bounds.variance.row_terms import RowTerms


@dataclass(frozen=True, kw_only=True)
class Deviations:
    """Bounds on the exact deviations z = x - (computed mean), (rows,).

    `apart` >= what several means add to mean z**2 - variance - (mean z)**2, `square` >= mean z**2,
    `absolute` >= mean |z|.
    """

    apart: Array
    square: Array
    absolute: Array


def deviations(t: RowTerms) -> Deviations:
    """Return the bounds on the deviations from the computed means."""
    e, tau = t.mean_error, t.spread
    apart = (tau * t.mean_deviation + tau**2 / 4.0) * INFLATION
    square = (t.variance + apart + e**2) * INFLATION
    absolute = np.minimum(np.sqrt(square), t.mean_deviation + e) * INFLATION
    return Deviations(apart=apart, square=square, absolute=absolute)
