"""Two-pass variance: v = mean((x - mean)**2)."""

from __future__ import annotations

from verifier.arithmetic.formats import Array
from verifier.arithmetic.row_statistics import RowStatistics
from verifier.arithmetic.simulated import RoundedArithmetic
from verifier.bounds.variance import MomentBound, Reduction
from verifier.bounds.variance.options import Centred
from verifier.bounds.variance.row_terms import moment_bound, terms
from verifier.bounds.variance.simulate import Executed

NAME = "two_pass"
CENTRED = True
NONNEGATIVE = True
THEOREMS = ("T1", "T3", "T3n", "T12")
OPTIONS = Centred


def bound(rows: RowStatistics, claim: Reduction) -> MomentBound:
    """Bound mean and variance; the variance error has the mean's error squared (T3, several means: T3n).

    Source: docs/explanation/bounds.md, T3 and T3n.
    """
    t = terms(rows, claim)
    after = t.squares_depth + t.per_count
    relative = t.theta(after + 3)
    moved = t.spread * t.mean_deviation + t.mean_error**2
    error = relative * t.variance + (1.0 + relative) * moved + t.flush**2 + t.sum_underflow(after)
    sums = t.count * (1.0 + t.theta(max(t.depth, t.squares_depth) + 3))
    return moment_bound(
        t,
        nonnegative=NONNEGATIVE,
        variance_error=error,
        guards=(
            (t.below_half(sums * t.mean_absolute), "the sum of the row may overflow"),
            (t.below_half(sums * (t.variance + moved)), "the sum of squared deviations may overflow"),
        ),
    )


def simulate(rounded: RoundedArithmetic, values: Array, claim: Reduction) -> tuple[Array, Array]:
    """Run the algorithm on values (rows, columns); return mean and variance, (rows,)."""
    run = Executed(rounded=rounded, claim=claim, count=values.shape[1])
    total = run.sum(values)
    deviations = run.minus_mean(values, total)
    return run.mean_of(total), run.clamped(run.mean_of(run.sum_of_squares(deviations)))
