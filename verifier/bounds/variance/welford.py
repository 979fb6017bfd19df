"""Welford variance: each lane updates mean and squares element by element, then lanes are merged."""

from __future__ import annotations

from verifier.arithmetic.formats import Array
from verifier.arithmetic.row_statistics import RowStatistics
from verifier.arithmetic.simulated import RoundedArithmetic
from verifier.bounds.variance import MomentBound, Reduction
from verifier.bounds.variance.bound_of_merges import bound_by_merging
from verifier.bounds.variance.options import Merged
from verifier.bounds.variance.simulate_merges import Merging

NAME = "welford"
CENTRED = True
NONNEGATIVE = True
THEOREMS = ("T7", "T8", "T12")
OPTIONS = Merged


def bound(rows: RowStatistics, claim: Reduction) -> MomentBound:
    """Bound mean and variance; the variance error is linear in kappa (T7; T8 where the tree names its order).

    Source: docs/explanation/bounds.md, T7 and T8.
    """
    return bound_by_merging(rows, claim, welford=True)


def simulate(rounded: RoundedArithmetic, values: Array, claim: Reduction) -> tuple[Array, Array]:
    """Run the algorithm on values (rows, columns); return mean and variance, (rows,)."""
    return Merging(rounded=rounded, claim=claim, welford=True).run(values)
