"""Corrected two-pass variance from means: v = mean(d**2) - mean(d)**2 with d = x - mean."""

from __future__ import annotations

import numpy as np

from verifier.arithmetic.formats import Array
from verifier.arithmetic.row_statistics import RowStatistics
from verifier.arithmetic.simulated import RoundedArithmetic
from verifier.bounds.variance import MomentBound, Reduction
from verifier.bounds.variance.deviations import deviations
from verifier.bounds.variance.options import CorrectedMean
from verifier.bounds.variance.row_terms import moment_bound, product_spread, terms
from verifier.bounds.variance.simulate import Executed

NAME = "two_pass_corrected_mean"
CENTRED = True
NONNEGATIVE = False
THEOREMS = ("T1", "T4b", "T12")
OPTIONS = CorrectedMean


def bound(rows: RowStatistics, claim: Reduction) -> MomentBound:
    """Bound mean and variance; with `corrects_mean` the mean is mean + mean(d), far better at large kappa.

    Mean and mean(d) may also be kept apart: mean(d) is what the first one lacks, up to R and the spread.

    Source: docs/explanation/bounds.md, T4b.
    """
    t, u = terms(rows, claim), claim.arithmetic.u
    corrects_mean = claim.chosen(CorrectedMean).corrects_mean
    z, after = deviations(t), t.squares_depth + t.per_count
    sums = t.depth + t.per_count
    e = t.mean_error
    R = t.theta(sums + 1) * z.absolute + t.omega + t.flush * (2.0 + t.theta(sums))
    squares = t.theta(after + 3) * z.square + z.apart + t.flush**2 + t.sum_underflow(after)
    difference = squares + 2.0 * e * R + R**2 + u * (e + R) ** 2 + t.omega
    grown = t.count * (1.0 + t.theta(max(sums, after) + 3))
    # The mean that is added may be rounded although every deviation used the product itself.
    apart = np.fmax(t.spread, product_spread(claim, t.count, t.mean_magnitude, e))
    corrected = (1.0 + u) * (R + apart) + u * t.mean_magnitude + t.flush
    return moment_bound(
        t,
        mean_error=corrected if corrects_mean else e,
        spread=np.zeros_like(e) if corrects_mean and not claim.per_lane_means else t.spread,
        variance_error=(1.0 + u) * difference + u * t.variance + t.flush,
        low_error=R + t.spread,
        guards=(
            (t.below_half(grown * t.mean_absolute), "the sum of the row may overflow"),
            (t.below_half(grown * z.square, (e + R) ** 2), "the sum of squared deviations may overflow"),
        ),
    )


def simulate(rounded: RoundedArithmetic, values: Array, claim: Reduction) -> tuple[Array, Array]:
    """Run the algorithm on values (rows, columns); return mean and variance, (rows,)."""
    run = Executed(rounded=rounded, claim=claim, count=values.shape[1])
    mean, t, d = _parts(run, values)
    variance = run.clamped(run.multiply_add(-t, t, run.mean_of(run.sum_of_squares(d))))
    return rounded.add(mean, t) if claim.chosen(CorrectedMean).corrects_mean else mean, variance


def simulate_parts(rounded: RoundedArithmetic, values: Array, claim: Reduction) -> tuple[Array, Array]:
    """Return the mean that is subtracted and the mean of what is left, (rows,) each."""
    mean, t, _ = _parts(Executed(rounded=rounded, claim=claim, count=values.shape[1]), values)
    return mean, t


def _parts(run: Executed, values: Array) -> tuple[Array, Array, Array]:
    total = run.sum(values)
    mean, d = run.used_mean(total), run.minus_mean(values, total)
    return mean, run.mean_of(run.sum(d)), d
