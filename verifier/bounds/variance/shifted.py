"""Shifted variance from means: v = mean(z**2) - mean(z)**2 with z = x - s, s one element of the row."""

from __future__ import annotations

import numpy as np

from verifier.arithmetic.formats import Array
from verifier.arithmetic.row_statistics import RowStatistics
from verifier.arithmetic.simulated import RoundedArithmetic
from verifier.bounds.variance import MomentBound, Reduction
from verifier.bounds.variance.options import ShiftedBy
from verifier.bounds.variance.row_terms import moment_bound, terms
from verifier.bounds.variance.simulate import Executed
from verifier.bounds.variance.subtracted_element import shifted

NAME = "shifted"
CENTRED = True
NONNEGATIVE = False
THEOREMS = ("T5", "T12")
OPTIONS = ShiftedBy


def bound(rows: RowStatistics, claim: Reduction) -> MomentBound:
    """Bound mean and variance; the variance error grows with ((mean - s) / sigma)**2 (T5).

    Source: docs/explanation/bounds.md, T5.
    """
    t, u = terms(rows, claim), claim.arithmetic.u
    z, after = shifted(t), t.squares_depth + t.per_count
    sums = t.depth + t.per_count
    e = t.theta(sums + 1) * z.absolute + t.omega + t.flush * (2.0 + t.theta(sums))
    squares = t.theta(after + 3) * z.square + t.flush**2 + t.sum_underflow(after)
    difference = squares + 2.0 * z.offset * e + e**2 + u * (z.offset + e) ** 2 + t.omega
    grown = t.count * (1.0 + t.theta(max(sums, after) + 3))
    return moment_bound(
        t,
        mean_error=(1.0 + u) * e + u * t.mean_magnitude + t.flush,
        spread=np.zeros_like(e),
        variance_error=(1.0 + u) * difference + u * t.variance + t.flush,
        guards=(
            (t.below_half(grown * z.absolute, 2.0 * t.largest), "the shifted sum may overflow"),
            (t.below_half(grown * z.square, (z.offset + e) ** 2), "the sum of squares may overflow"),
        ),
    )


def simulate(rounded: RoundedArithmetic, values: Array, claim: Reduction) -> tuple[Array, Array]:
    """Run the algorithm on values (rows, columns); return mean and variance, (rows,)."""
    run = Executed(rounded=rounded, claim=claim, count=values.shape[1])
    shift = values[:, claim.chosen(ShiftedBy).shift_index]
    z = rounded.subtract(values, shift[:, None])
    mean = run.mean_of(run.sum(z))
    variance = run.multiply_add(-mean, mean, run.mean_of(run.sum_of_squares(z)))
    return rounded.add(shift, mean), run.clamped(variance)
