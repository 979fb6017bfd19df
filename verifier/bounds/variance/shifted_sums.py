"""Shifted variance from sums: v = (sum z**2 - (sum z)**2 / N) / N, z = x - s, s one element of the row."""

from __future__ import annotations

import numpy as np

from verifier.arithmetic.formats import Array
from verifier.arithmetic.row_statistics import RowStatistics
from verifier.arithmetic.simulated import RoundedArithmetic
from verifier.bounds.variance import MomentBound, Reduction
from verifier.bounds.variance.bound_of_sums import largest_sums, variance_error
from verifier.bounds.variance.options import ShiftedBy
from verifier.bounds.variance.row_terms import moment_bound, terms
from verifier.bounds.variance.simulate import Executed
from verifier.bounds.variance.subtracted_element import shifted

NAME = "shifted_sums"
CENTRED = True
NONNEGATIVE = False
THEOREMS = ("T5", "T5'", "T12")
OPTIONS = ShiftedBy


def bound(rows: RowStatistics, claim: Reduction) -> MomentBound:
    """Bound mean and variance; the variance error grows with ((mean - s) / sigma)**2 (T5').

    Source: docs/explanation/bounds.md, T5 and T5'.
    """
    t, u = terms(rows, claim), claim.arithmetic.u
    z, sums = shifted(t), t.depth + t.per_count
    e = t.theta(sums + 1) * z.absolute + t.omega + t.flush * (2.0 + t.theta(sums))
    squares, squared = largest_sums(t, square=z.square, absolute=z.absolute)
    return moment_bound(
        t,
        mean_error=(1.0 + u) * e + u * t.mean_magnitude + t.flush,
        spread=np.zeros_like(e),
        variance_error=variance_error(t, square=z.square, absolute=z.absolute, subtracted=True),
        guards=(
            (t.below_half(squares, 2.0 * t.largest), "the sum of squares may overflow"),
            (t.below_half(squared), "the squared shifted sum may overflow"),
        ),
    )


def simulate(rounded: RoundedArithmetic, values: Array, claim: Reduction) -> tuple[Array, Array]:
    """Run the algorithm on values (rows, columns); return mean and variance, (rows,)."""
    run = Executed(rounded=rounded, claim=claim, count=values.shape[1])
    shift = values[:, claim.chosen(ShiftedBy).shift_index]
    z = rounded.subtract(values, shift[:, None])
    total = run.sum(z)
    return rounded.add(shift, run.mean_of(total)), run.from_sums(run.sum_of_squares(z), total)
