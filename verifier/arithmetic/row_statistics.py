"""Exact statistics of rows, rounded outwards: what the theorems need to know of the input."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from verifier.arithmetic.formats import Array
from verifier.arithmetic.lazy_fields import LazyField

_ROWS_KEPT = 512
"""Rows whose exact moments are remembered: one algorithm after the other is held against the same ones."""


@dataclass(frozen=True, kw_only=True)
class RowStatistics:
    """Certified statistics of each row x of an input; every field but `count` has shape (rows,).

    `mean` is the float64 nearest the exact mean; the others are bounds in float64:
    `mean_magnitude` >= |mean|, `variance_lower` <= population variance <= `variance_upper`,
    `mean_absolute` >= mean |x|, `mean_square` >= mean x**2, `mean_deviation` >= mean |x - mean|,
    `largest_deviation` >= max |x - mean|, `largest` >= max |x|.
    `finite` is false for rows that hold a NaN or an infinity; their other fields are NaN.
    `values` are the rows themselves, (rows, count), for bounds that follow the reduction.
    """

    count: int
    mean: Array
    mean_magnitude: Array
    variance_lower: Array
    variance_upper: Array
    mean_absolute: Array
    mean_square: Array
    mean_deviation: Array
    largest_deviation: Array
    largest: Array
    finite: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    values: LazyField[Array] = LazyField()

    @property
    def sigma(self) -> Array:
        """Upper bound on the standard deviation."""
        return np.sqrt(self.variance_upper) * (1.0 + 2.0**-52)

    @property
    def mean_square_lower(self) -> Array:
        """Lower bound on mean x**2: mean x**2 = variance + mean**2, and `mean` is the nearest float64."""
        return (self.variance_lower + self.mean**2) * (1.0 - 2.0**-50)

    @property
    def kappa(self) -> Array:
        """|mean| / standard deviation, in float64 (infinite for constant rows with a mean)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = self.mean_magnitude / np.sqrt(self.variance_lower)
        return np.where(self.mean_magnitude == 0, 0.0, ratio)


def exact_moments(row: Array) -> tuple[Fraction, Fraction, Fraction]:
    """Return mean, population variance and mean square of one finite row, exactly."""
    return _moments(row.tobytes(), row.dtype.str)


@lru_cache(maxsize=_ROWS_KEPT)
def _moments(row: bytes, dtype: str) -> tuple[Fraction, Fraction, Fraction]:
    integers, exponent = _integers(np.frombuffer(row, dtype))
    count, total = len(integers), sum(integers)
    squares = sum(i * i for i in integers)
    unit = Fraction(2) ** exponent
    variance = Fraction(count * squares - total * total, count * count) * unit**2
    return Fraction(total, count) * unit, variance, Fraction(squares, count) * unit**2


def exact_statistics(values: Array) -> RowStatistics:
    """Return the statistics of rows (rows, columns) by integer arithmetic: slow, and plainly right.

    The oracle has a fast way to the same; this one serves tests and searches.
    """
    columns = [_row_statistics(row) for row in values]
    names = (
        "mean",
        "mean_magnitude",
        "variance_lower",
        "variance_upper",
        "mean_absolute",
        "mean_square",
        "mean_deviation",
        "largest_deviation",
        "largest",
    )
    fields = {name: np.array([c[i] for c in columns], dtype=np.float64) for i, name in enumerate(names)}
    finite = np.asarray(np.isfinite(values).all(axis=1))
    return RowStatistics(count=values.shape[1], finite=finite, values=values, **fields)


def _row_statistics(row: Array) -> tuple[float, ...]:
    if len(row) == 0 or not np.isfinite(row).all():
        return (math.nan,) * 9
    integers, exponent = _integers(row)
    count, total = len(integers), sum(integers)
    unit = Fraction(2) ** exponent
    mean, variance, square = exact_moments(row)
    deviations = [abs(count * i - total) for i in integers]
    up = (
        abs(mean),
        variance,
        Fraction(sum(map(abs, integers)), count) * unit,
        square,
        Fraction(sum(deviations), count * count) * unit,
        Fraction(max(deviations), count) * unit,
        Fraction(max(map(abs, integers))) * unit,
    )
    bounds = [_above(value) for value in up]
    return (float(mean), bounds[0], _below(variance), *bounds[1:])


def _integers(row: Array) -> tuple[list[int], int]:
    """Return integers and one exponent such that row = integers * 2**exponent."""
    significands, exponents = np.frexp(row)
    whole = (significands * 2.0**53).astype(np.int64).tolist()
    shifts = np.where(row == 0.0, np.max(exponents, initial=-1100), exponents)
    lowest = int(shifts.min())
    return [w << int(s) - lowest for w, s in zip(whole, shifts, strict=True)], lowest - 53


def _above(value: Fraction) -> float:
    """Return a float64 that is at least `value`."""
    try:
        near = float(value)
    except OverflowError:
        return math.inf
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)


def _below(value: Fraction) -> float:
    """Return a float64 that is at most `value`."""
    try:
        near = float(value)
    except OverflowError:
        return math.ldexp(1.0, 1023)
    return near if Fraction(near) <= value else math.nextafter(near, -math.inf)
