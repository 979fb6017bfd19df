"""The sum form v = (sum z**2 - (sum z)**2 / N) / N, whatever z is (T2' and T5')."""

from __future__ import annotations

from verifier.arithmetic.formats import Array
from verifier.bounds.variance.row_terms import RowTerms


def variance_error(t: RowTerms, *, square: Array, absolute: Array, subtracted: bool) -> Array:
    """Bound the error of the variance; square >= mean z**2, absolute >= mean |z|.

    subtracted: z is itself a rounded difference.

    Source: docs/explanation/bounds.md, T2' and T5'.
    """
    made = 1 if subtracted else 0
    d = max(t.depth, t.squares_depth)
    last = t.theta(1.0 + t.per_count)
    sums = 1.0 + t.theta(d)
    flushed = t.flush * (sums + made)
    squares = t.theta(d + 1 + 2 * made) * square + made * t.flush**2 + (t.omega + t.flush) * sums
    product = t.theta(2 * d + 1 + 2 * made + t.per_count) * absolute**2
    lost = (1.0 + last) * flushed * (2.0 * absolute * (1.0 + t.theta(d + made)) + flushed)
    small = (t.omega * (2.0 + last) + t.flush) / max(t.count, 1)
    return (1.0 + last) * (squares + product + lost + small) + last * t.variance + t.omega


def largest_sums(t: RowTerms, *, square: Array, absolute: Array) -> tuple[Array, Array]:
    """Return the largest sum of squares and the largest squared sum, for the domain (T12)."""
    grown = (1.0 + t.theta(max(t.depth, t.squares_depth) + 3)) ** 3
    total = t.count * absolute + t.count * t.flush
    return t.count * square * grown, total**2 * grown
