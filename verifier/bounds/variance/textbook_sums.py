"""Textbook variance from sums: v = (sum x**2 - (sum x)**2 / N) / N."""

from __future__ import annotations

from verifier.arithmetic.formats import Array
from verifier.arithmetic.row_statistics import RowStatistics
from verifier.arithmetic.simulated import RoundedArithmetic
from verifier.bounds.variance import MomentBound, Reduction
from verifier.bounds.variance.bound_of_sums import largest_sums, variance_error
from verifier.bounds.variance.options import Squares
from verifier.bounds.variance.row_terms import moment_bound, terms
from verifier.bounds.variance.simulate import Executed

NAME = "textbook_sums"
CENTRED = True
NONNEGATIVE = False
THEOREMS = ("T1", "T2'", "T12")
OPTIONS = Squares


def bound(rows: RowStatistics, claim: Reduction) -> MomentBound:
    """Bound mean and variance; the variance error grows with kappa**2 (T2').

    Source: docs/explanation/bounds.md, T2'.
    """
    t = terms(rows, claim)
    squares, squared = largest_sums(t, square=t.mean_square, absolute=t.mean_absolute)
    return moment_bound(
        t,
        variance_error=variance_error(t, square=t.mean_square, absolute=t.mean_absolute, subtracted=False),
        guards=(
            (t.below_half(squares), "the sum of squares may overflow"),
            (t.below_half(squared), "the squared sum of the row may overflow"),
        ),
    )


def simulate(rounded: RoundedArithmetic, values: Array, claim: Reduction) -> tuple[Array, Array]:
    """Run the algorithm on values (rows, columns); return mean and variance, (rows,)."""
    run = Executed(rounded=rounded, claim=claim, count=values.shape[1])
    total = run.sum(values)
    return run.mean_of(total), run.from_sums(run.sum_of_squares(values), total)
