"""Exact row statistics, rounded outwards, as the theorems read them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from verifier.arithmetic.error_free.numpy_or_torch import Arrays, Kit
from verifier.arithmetic.formats import Array
from verifier.arithmetic.lazy_fields import Later
from verifier.arithmetic.row_statistics import RowStatistics
from verifier.oracle.balls import EXACT_BITS, Ball, parts_of, precision, uppers
from verifier.oracle.enclosure import OUTWARD, TINY, UNIT
from verifier.oracle.rows.exact_sums import RowSums
from verifier.oracle.rows.operands import Rows

MOMENT_BITS = 256
"""Precision of the mean and variance that are rounded to float64 here."""


def moments(sums: RowSums) -> tuple[list[Ball], list[Ball]]:
    """Return the exact mean and population variance of each row, as balls."""
    count = sums.count
    with precision(EXACT_BITS):
        spreads = [
            count * squares - total * total for total, squares in zip(sums.x, sums.squares, strict=True)
        ]
    with precision(MOMENT_BITS):
        means = [total / count for total in sums.x]
        variances = [spread / (count * count) for spread in spreads]
    return means, variances


def row_statistics(
    rows: Rows, sums: RowSums, known: tuple[Sequence[Ball], Sequence[Ball]] | None
) -> RowStatistics:
    """Return the statistics of each row; known: its mean and variance balls, if computed before."""
    means, variances = known or moments(sums)
    with precision(MOMENT_BITS):
        mean, mean_slack = parts_of(means, 1)
        mean_magnitude = uppers(means)
        lower, higher = _intervals(variances)
        mean_square = uppers([squares / sums.count for squares in sums.squares])
    largest, mean_absolute, farthest, mean_deviation = _absolute(rows, mean, mean_slack)
    finite = ~rows.bad_rows
    with np.errstate(invalid="ignore"):
        hidden = np.where(finite, 0.0, np.nan)
        return RowStatistics(
            count=sums.count,
            mean=mean + hidden,
            mean_magnitude=mean_magnitude + hidden,
            variance_lower=lower + hidden,
            variance_upper=higher + hidden,
            mean_absolute=mean_absolute + hidden,
            mean_square=mean_square + hidden,
            mean_deviation=mean_deviation + hidden,
            largest_deviation=farthest + hidden,
            largest=largest + hidden,
            finite=finite,
            values=Later(lambda: _values(rows)),
        )


def _values(rows: Rows) -> Array:
    values = rows.kit.host(rows.x)
    return np.where(rows.bad_rows[:, None], np.nan, values) if rows.bad_rows.any() else values


def _intervals(values: Sequence[Ball]) -> tuple[Array, Array]:
    """Return float64 bounds of non-negative values."""
    high, low, radius = parts_of(values, 2)
    below = np.where(low < radius, np.nextafter(high, -np.inf), high)
    above = np.where(low > -radius, np.nextafter(high, np.inf), high)
    for i in np.flatnonzero(
        radius == np.inf
    ).tolist():  # beyond float64, or no value at all (rows without elements)
        within = values[i].is_finite()
        below[i], above[i] = (np.finfo(np.float64).max, np.inf) if within else (np.nan, np.nan)
    return np.maximum(below, 0.0), above


def _absolute(rows: Rows, mean: Array, mean_slack: Array) -> tuple[Array, ...]:
    """Return max |x|, mean |x|, max |x - mean| and mean |x - mean| of each row, rounded up."""
    count = rows.shape[1]
    if not count:
        return (np.full(rows.shape[0], np.nan),) * 4
    with np.errstate(over="ignore", invalid="ignore"):
        largest, sum_absolute = _extent(rows.kit, abs(rows.x))
        farthest, sum_deviation = _extent(rows.kit, abs(rows.x - rows.kit.device(mean)[:, None]))
        # count - 1 additions, the difference, the division, the widening and the last sum: count + 3
        # roundings, each UNIT, and as much again for what is of higher order
        grown = 1.0 + (2.0 * count + 8.0) * UNIT
        mean_absolute = sum_absolute / count * grown + TINY * (sum_absolute > 0)
        mean_deviation = sum_deviation / count * grown + mean_slack + TINY * (sum_deviation > 0)
        farthest = farthest * (1.0 + OUTWARD) + mean_slack
        exact = mean_slack == 0
        return (
            largest,
            mean_absolute,
            np.where(exact, farthest, np.nextafter(farthest, np.inf)),
            np.where(exact, mean_deviation, np.nextafter(mean_deviation, np.inf)),
        )


def _extent(kit: Kit, sizes: Arrays) -> tuple[Array, Array]:
    return kit.host(kit.largest(sizes, 1)), kit.host(sizes.sum(1))
