"""Corrected two-pass variance from sums: v = (sum d**2 - (sum d)**2 / N) / N with d = x - mean."""

from __future__ import annotations

from verifier.arithmetic.formats import Array
from verifier.arithmetic.row_statistics import RowStatistics
from verifier.arithmetic.simulated import RoundedArithmetic
from verifier.bounds.variance import MomentBound, Reduction
from verifier.bounds.variance.deviations import deviations
from verifier.bounds.variance.options import Centred
from verifier.bounds.variance.row_terms import moment_bound, terms
from verifier.bounds.variance.simulate import Executed

NAME = "two_pass_corrected"
CENTRED = True
NONNEGATIVE = False
THEOREMS = ("T1", "T4", "T4n", "T12")
OPTIONS = Centred


def bound(rows: RowStatistics, claim: Reduction) -> MomentBound:
    """Bound mean and variance; the mean's error squared is multiplied by u (T4, several means: T4n).

    Source: docs/explanation/bounds.md, T4 and T4n.
    """
    t, count = terms(rows, claim), max(rows.count, 1)
    z, d = deviations(t), max(t.depth, t.squares_depth)
    last, e = t.theta(1.0 + t.per_count), t.mean_error
    sums = 1.0 + t.theta(d)
    R = t.theta(d + 1) * z.absolute + t.flush * (1.0 + sums)
    squares = t.theta(d + 3) * z.square + z.apart + t.flush**2 + (t.omega + t.flush) * sums
    correction = 2.0 * e * R + R**2 + last * (e + R) ** 2
    small = (t.omega * (2.0 + last) + t.flush) / count
    error = (1.0 + last) * (squares + correction + small) + last * t.variance + t.omega
    grown = (1.0 + t.theta(d + 3)) ** 3
    return moment_bound(
        t,
        variance_error=error,
        guards=(
            (t.below_half(t.count * t.mean_absolute * grown), "the sum of the row may overflow"),
            (t.below_half(t.count * z.square * grown), "the sum of squared deviations may overflow"),
            (t.below_half(float(t.count) ** 2 * (e + R) ** 2 * grown), "the squared sum may overflow"),
        ),
    )


def simulate(rounded: RoundedArithmetic, values: Array, claim: Reduction) -> tuple[Array, Array]:
    """Run the algorithm on values (rows, columns); return mean and variance, (rows,)."""
    run = Executed(rounded=rounded, claim=claim, count=values.shape[1])
    total = run.sum(values)
    d = run.minus_mean(values, total)
    return run.mean_of(total), run.from_sums(run.sum_of_squares(d), run.sum(d))
