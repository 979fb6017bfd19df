"""Mean square, as RMSNorm uses it: mean(x**2)."""

from __future__ import annotations

import numpy as np

from verifier.arithmetic.formats import Array
from verifier.arithmetic.row_statistics import RowStatistics
from verifier.arithmetic.simulated import RoundedArithmetic
from verifier.bounds.variance import MomentBound, Reduction
from verifier.bounds.variance.row_terms import moment_bound, terms
from verifier.bounds.variance.simulate import Executed

NAME = "rms"
CENTRED = False
NONNEGATIVE = True
THEOREMS = ("T6", "T12")


def bound(rows: RowStatistics, claim: Reduction) -> MomentBound:
    """Bound the mean square; there is no mean, so its error is zero (T6).

    Source: docs/explanation/bounds.md, T6.
    """
    t = terms(rows, claim)
    after = t.squares_depth + t.per_count
    error = t.theta(after + 1) * t.mean_square + t.sum_underflow(after)
    sums = t.count * (1.0 + t.theta(t.squares_depth + 1))
    zero = np.zeros_like(error)
    return moment_bound(
        t,
        nonnegative=NONNEGATIVE,
        mean_error=zero,
        spread=zero,
        variance_error=error,
        centred=False,
        guards=((t.below_half(sums * t.mean_square), "the sum of squares may overflow"),),
    )


def simulate(rounded: RoundedArithmetic, values: Array, claim: Reduction) -> tuple[Array, Array]:
    """Run the algorithm on values (rows, columns); return zero and the mean square, (rows,)."""
    run = Executed(rounded=rounded, claim=claim, count=values.shape[1])
    mean_square = run.mean_of(run.sum_of_squares(values))
    return np.zeros_like(mean_square), mean_square
