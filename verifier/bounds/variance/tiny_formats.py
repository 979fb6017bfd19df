"""Every row of a tiny format, with exact statistics and errors for all rows at once."""

from __future__ import annotations

import itertools

import numpy as np

from verifier.arithmetic.formats import Array, Format
from verifier.arithmetic.row_statistics import RowStatistics
from verifier.arithmetic.simulated import RoundedArithmetic
from verifier.bounds.variance import Reduction, algorithm
from verifier.bounds.variance.attack import Utilisation

_SLACK = 2.0**-45
"""Covers the float64 roundings of the statistics below, far under any u of a tiny format."""


def tiny(precision: int, minimum_exponent: int) -> Format:
    """Return a format of a few bits and practically no largest number."""
    return Format(
        name=f"p{precision}", precision=precision, minimum_exponent=minimum_exponent, maximum=2.0**200
    )


def grid(held: Format, lowest: int, binades: int) -> Array:
    """Return zero and every number of the binades from 2**lowest up, of both signs."""
    significands = np.arange(2 ** (held.precision - 1), 2**held.precision)
    exponents = np.arange(lowest, lowest + binades) - held.precision + 1
    positive = (significands * 2.0 ** exponents[:, None]).ravel()
    smallest = 2.0 ** (held.minimum_exponent - held.precision + 1)
    positive = np.unique(np.rint(positive / smallest) * smallest)
    positive = positive[positive > 0]
    return np.concatenate([-positive[::-1], [0.0], positive])


def all_rows(points: Array, count: int) -> Array:
    """Return all rows of `count` points whose first is positive or zero (the rest follows by sign)."""
    rows = np.array(list(itertools.product(points[points >= 0], *[points] * (count - 1))))
    return rows.reshape(-1, count)


def statistics_of_small(values: Array) -> RowStatistics:
    """Return the statistics of rows of small dyadic numbers, exact up to one rounding of a quotient."""
    count = values.shape[1]
    total, squares = values.sum(axis=1), (values**2).sum(axis=1)
    variance = (count * squares - total**2) / count**2
    mean = total / count
    away = np.abs(count * values - total[:, None]) / count
    up = 1.0 + _SLACK
    return RowStatistics(
        count=count,
        mean=mean,
        mean_magnitude=np.abs(mean) * up,
        variance_lower=variance / up,
        variance_upper=variance * up,
        mean_absolute=np.abs(values).sum(axis=1) / count * up,
        mean_square=squares / count * up,
        mean_deviation=away.sum(axis=1) / count * up,
        largest_deviation=away.max(axis=1) * up,
        largest=np.abs(values).max(axis=1),
        finite=np.ones(len(values), dtype=np.bool_),
        values=values,
    )


def utilisation_of_small(
    name: str, values: Array, claim: Reduction, statistics: RowStatistics
) -> Utilisation:
    """Return error / bound of every row, as `attack.utilisation` does, for rows of small dyadic numbers.

    The errors are exact: N and N**2 times them are sums of a few dyadic numbers of under 53 bits.
    """
    module, count = algorithm(name), values.shape[1]
    arithmetic = claim.arithmetic
    rounded = RoundedArithmetic(format=arithmetic.format, flush_to_zero=arithmetic.flush_to_zero)
    bound = module.bound(statistics, claim)
    mean, variance = module.simulate(rounded, rounded.read(values), claim)
    total, squares = values.sum(axis=1), (values**2).sum(axis=1)
    target = count * squares - total**2 if module.CENTRED else count * squares
    variance_error = np.abs(variance * count**2 - target) / count**2
    mean_error = np.abs(mean * count - total) / count if module.CENTRED else np.zeros_like(mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.stack([mean_error / bound.mean_error, variance_error / bound.variance_error])
    ratios = np.where(
        bound.covered & (ratios > 0.0), ratios, np.where(np.isnan(mean + variance), np.inf, 0.0)
    )
    ratios[:, ~bound.covered] = 0.0
    return Utilisation(mean=ratios[0], variance=ratios[1], covered=bound.covered)
