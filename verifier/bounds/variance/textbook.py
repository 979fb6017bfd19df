"""Textbook variance from two means: v = mean(x**2) - mean(x)**2."""

from __future__ import annotations

import numpy as np

from verifier.arithmetic.formats import Array
from verifier.arithmetic.row_statistics import RowStatistics
from verifier.arithmetic.simulated import RoundedArithmetic
from verifier.bounds.variance import MomentBound, Reduction
from verifier.bounds.variance.options import Squares
from verifier.bounds.variance.row_terms import moment_bound, terms
from verifier.bounds.variance.simulate import Executed

NAME = "textbook"
CENTRED = True
NONNEGATIVE = False
THEOREMS = ("T1", "T2", "T12")
OPTIONS = Squares


def bound(rows: RowStatistics, claim: Reduction) -> MomentBound:
    """Bound mean and variance; the variance error grows with kappa**2 (T2).

    Source: docs/explanation/bounds.md, T2.
    """
    t = terms(rows, claim)
    roundings = t.squares_depth + t.per_count
    squares = t.theta(roundings + 1) * t.mean_square + t.sum_underflow(roundings)
    e, m = t.mean_error, t.mean_magnitude
    difference = squares + 2.0 * m * e + e**2 + t.u * (m + e) ** 2 + t.omega
    sums = t.count * (1.0 + t.theta(max(t.depth, t.squares_depth) + 1))
    return moment_bound(
        t,
        variance_error=(1.0 + t.u) * difference + t.u * t.variance + t.flush,
        guards=(
            (t.below_half(sums * t.mean_absolute, (m + e) ** 2), "the sum of the row may overflow"),
            (t.below_half(sums * t.mean_square), "the sum of squares may overflow"),
        ),
    )


def simulate(rounded: RoundedArithmetic, values: Array, claim: Reduction) -> tuple[Array, Array]:
    """Run the algorithm on values (rows, columns); return mean and variance, (rows,)."""
    run = Executed(rounded=rounded, claim=claim, count=values.shape[1])
    mean, squares = run.mean_of(run.sum(values)), run.sum_of_squares(values)
    if claim.mean_contraction == "mixed" and claim.divide_by_n == "reciprocal":
        # What nvcc makes of it: the product with 1/N is the one that is fused.
        inverse = np.broadcast_to(run.reciprocal, squares.shape)
        return mean, run.clamped(rounded.multiply_add(squares, inverse, -rounded.multiply(mean, mean)))
    return mean, run.clamped(run.multiply_add(-mean, mean, run.mean_of(squares)))
