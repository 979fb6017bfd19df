"""The numbers that all variance bounds are made of, and what they have in common.

Flush to zero is modelled as: each element read moves by at most w (the smallest normal number),
each addition and each product by at most w more. The bounds are proved for the row as it is read
and then transferred to the row as it is; see docs/explanation/bounds.md, "Flush to zero".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verifier.arithmetic.formats import FORMATS, INFLATION, Array, theta
from verifier.arithmetic.row_statistics import RowStatistics
from verifier.bounds.variance import Mask, MeanParts, MomentBound, Reduction

_EVALUATION = 2.0**-1060
"""Covers what the evaluation of a bound itself may lose to underflow in float64 (2**-1074 an operation)."""

Condition = tuple[Mask, str]


@dataclass(frozen=True, kw_only=True)
class RowTerms:
    """Statistics of the rows as the kernel reads them, and the hypotheses on its roundings.

    Arrays have shape (rows,). `depth` and `squares_depth` count additions on the longest path of
    the two sums, `per_count` the roundings of a division by the count (c_m), `omega` and `flush`
    the absolute errors of a product and of an addition. `mean_error` bounds the error of every mean
    that is subtracted, `spread` the difference of two of them.
    """

    rows: RowStatistics
    claim: Reduction
    u: float
    omega: float
    flush: float
    depth: int
    squares_depth: int
    per_count: float
    mean_magnitude: Array
    mean_absolute: Array
    mean_square: Array
    mean_deviation: Array
    largest_deviation: Array
    largest: Array
    sigma: Array
    variance: Array
    mean_error: Array
    spread: Array

    @property
    def count(self) -> int:
        """Number of elements of a row."""
        return self.rows.count

    def theta(self, roundings: float) -> float:
        """Return (1 + u)**roundings - 1."""
        return theta(roundings, self.u)

    def sum_underflow(self, roundings: float) -> float:
        """Absolute error of a mean of products: products, additions and the division (roundings: all)."""
        return (self.omega + self.flush) * (1.0 + self.theta(roundings)) + self.omega

    def below_half(self, *values: Array) -> Mask:
        """Return where all the magnitudes are below half of the largest number (T12)."""
        limit = self.claim.arithmetic.format.maximum / 2.0
        inside = np.ones(self.rows.mean.shape, dtype=np.bool_)
        for value in values:
            inside &= np.asarray(value * INFLATION) < limit
        return inside


def terms(rows: RowStatistics, claim: Reduction) -> RowTerms:
    """Return what the bounds of one declaration need on these rows."""
    arithmetic, count = claim.arithmetic, rows.count
    read = arithmetic.sum_omega  # as much may go when an element is read, or when it is added
    depth = claim.tree.depth(count)
    per_count = arithmetic.division_by_count(count, claim.divide_by_n) if count else 0.0
    sigma = rows.sigma + read
    mean_absolute = rows.mean_absolute + read
    magnitude = rows.mean_magnitude + read
    roundings = theta(depth + per_count, arithmetic.u)
    error = roundings * mean_absolute + arithmetic.omega + read * (1.0 + roundings)  # T1
    error, spread = _as_used(claim, count, magnitude, error * INFLATION)
    return RowTerms(
        rows=rows,
        claim=claim,
        u=arithmetic.u,
        omega=arithmetic.omega,
        flush=read,
        depth=depth,
        squares_depth=(claim.squares_tree or claim.tree).depth(count),
        per_count=per_count,
        mean_magnitude=magnitude,
        mean_absolute=mean_absolute,
        mean_square=_moved_square(rows.mean_square, read),
        mean_deviation=rows.mean_deviation + 2.0 * read,
        largest_deviation=rows.largest_deviation + 2.0 * read,
        largest=rows.largest + read,
        sigma=sigma,
        variance=rows.variance_upper if read == 0.0 else sigma**2 * INFLATION,
        mean_error=error,
        spread=spread,
    )


def moment_bound(
    t: RowTerms,
    *,
    variance_error: Array,
    guards: tuple[Condition, ...],
    mean_error: Array | None = None,
    spread: Array | None = None,
    centred: bool = True,
    nonnegative: bool = False,
    low_error: Array | None = None,
) -> MomentBound:
    """Return the bound on the rows as they are, and the rows on which its hypotheses hold.

    low_error: bounds what an algorithm that keeps the mean as two numbers loses of it.
    """
    read = t.flush
    mean_error = t.mean_error if mean_error is None else mean_error
    moved = 2.0 * read * (t.rows.sigma if centred else np.sqrt(t.mean_square)) + read**2
    if centred:
        mean_error = (mean_error + read) * INFLATION + _EVALUATION
    variance_error = (variance_error + moved) * INFLATION + _EVALUATION
    guards = (*_common_guards(t), *guards)
    finite = np.isfinite(variance_error) & np.isfinite(mean_error)
    guards = (*guards, (finite, "the bound is not finite"))
    covered, why = conclusion(guards)
    return MomentBound(
        mean_error=np.where(covered, mean_error, np.inf),
        mean_spread=np.where(covered, t.spread if spread is None else spread, np.inf),
        variance_error=np.where(covered, variance_error, np.inf),
        covered=covered,
        why=why,
        centred=centred,
        nonnegative=nonnegative or t.claim.clamp,
        parts=None if low_error is None else _parts(t, low_error, covered),
    )


def _parts(t: RowTerms, low_error: Array, covered: Mask) -> MeanParts:
    high, low = ((error + t.flush) * INFLATION + _EVALUATION for error in (t.mean_error, low_error))
    return MeanParts(
        high_error=np.where(covered, high, np.inf),
        high_spread=np.where(covered, t.spread, np.inf),
        low_error=np.where(covered, low, np.inf),
    )


def conclusion(guards: tuple[Condition, ...]) -> tuple[Mask, str]:
    """Return where all demands hold, and the first that fails of each row where one does."""
    covered, reasons = np.ones(guards[0][0].shape, dtype=np.bool_), []
    for mask, why in guards:
        if (covered & ~mask).any():
            reasons.append(why)
        covered &= mask
    return covered, "; ".join(dict.fromkeys(reasons))


def _common_guards(t: RowTerms) -> tuple[Condition, ...]:
    arithmetic, count = t.claim.arithmetic, t.count
    everywhere = np.ones(t.rows.mean.shape, dtype=np.bool_)
    too_many = count > arithmetic.format.maximum
    tiny = t.claim.divide_by_n != "division" and count * arithmetic.format.smallest_normal > 1.0
    return (
        (np.asarray(t.rows.finite, dtype=np.bool_), "the row holds a NaN or an infinity"),
        (everywhere & (count > 0), "the row is empty"),
        (everywhere & (not too_many), f"the count {count} overflows {arithmetic.format.name}"),
        (everywhere & (not tiny), f"1/{count} is subnormal in {arithmetic.format.name}"),
        (np.isfinite(t.mean_error), f"the mean may overflow {t.claim.mean_cast or arithmetic.format.name}"),
    )


def _as_used(claim: Reduction, count: int, magnitude: Array, error: Array) -> tuple[Array, Array]:
    """Return error and spread of the means that are subtracted: after a cast, or contracted in some uses."""
    if claim.mean_cast is not None:
        narrow = FORMATS[claim.mean_cast]
        inside = (magnitude + error) * INFLATION < narrow.maximum / 2.0  # T12 for the cast
        error = error + (narrow.u * (magnitude + error) + narrow.omega) * INFLATION
        error = np.where(inside, error, np.inf)
    spread = mean_spread(claim, count, magnitude, error)
    return error, spread


def mean_spread(claim: Reduction, count: int, magnitude: Array, error: Array) -> Array:
    """Return how far two of the row's means may be apart (tau of T3n).

    A product sum * (1 / N) that the compiler contracts in some uses only is several numbers; a
    correctly rounded quotient is one. Lanes that merge in different orders have means of their own.
    """
    if claim.per_lane_means:
        return 2.0 * error
    if claim.mean_contraction != "mixed" or claim.mean_cast is not None:
        return np.zeros_like(magnitude)
    return product_spread(claim, count, magnitude, error)


def product_spread(claim: Reduction, count: int, magnitude: Array, error: Array) -> Array:
    """Return how far sum * (1 / N) may be from its rounded value; a correct quotient is one number.

    Where nothing is said of the division it may be such a product.
    """
    arithmetic = claim.arithmetic
    one_number = (
        claim.mean_contraction == "none"
        or (count > 0 and arithmetic.division_by_count(count, claim.divide_by_n) == 0.0)
        or (claim.divide_by_n == "division" and arithmetic.division == 1.0)
    )
    if one_number:
        return np.zeros_like(magnitude)
    return (arithmetic.u * (magnitude + error) + arithmetic.omega) * INFLATION


def _moved_square(square: Array, read: float) -> Array:
    return square if read == 0.0 else (np.sqrt(square) + read) ** 2 * INFLATION
