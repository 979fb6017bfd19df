"""Comparing results with exact values, rung by rung, until every comparison is proved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import numpy as np

from verifier.arithmetic.formats import Array
from verifier.oracle.balls import Ball, ball, parts_of, precision, uppers
from verifier.oracle.enclosure import Mask

ComparedErrors = tuple[Array, Array, Mask, Mask]
"""Lower and upper bounds of |actual - exact|, and where it is proved to be at most a limit, or above it."""


class Exact(Protocol):
    """Exact values that results can be compared with."""

    def compare(self, actual: Array, limit: Array) -> ComparedErrors:
        """Compare as many results with as many limits; NaN bounds where there is no exact value."""


Comparison = Callable[[Mask], Exact]
"""Given the mask of open elements, returns the exact values of these elements, flat, in order."""

PRECISIONS: Final = (256, 512, 1024, 2048, 4096, 8192)
"""Bits of the Arb rungs. 8192 ends it: only an error equal to its bound to 2000 digits stays open."""


@dataclass(frozen=True, kw_only=True)
class Balls:
    """Exact values as balls of `bits` precision; None where no exact value exists."""

    values: Sequence[Ball | None]
    bits: int

    def compare(self, actual: Array, limit: Array) -> ComparedErrors:
        """Compare results with limits at the precision of the balls."""
        size = actual.size
        low, high = np.full(size, np.nan), np.full(size, np.nan)
        passed, failed = np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)
        exists = np.array([value is not None for value in self.values], dtype=bool)
        known = np.array([value is not None and value.is_finite() for value in self.values], dtype=bool)
        low[exists & ~known], high[exists & ~known] = 0.0, np.inf
        wild = known & ~np.isfinite(actual)
        low[wild], high[wild], failed[wild] = np.inf, np.inf, limit[wild] < np.inf
        places = np.flatnonzero(known & ~wild)
        with precision(self.bits):
            errors = [
                abs(ball(actual[k]) - value) for k in places.tolist() if (value := self.values[k]) is not None
            ]
            low[places], high[places] = _bounds(errors)
            limits = limit[places].tolist()
            passed[places] = [bool(error <= most) for error, most in zip(errors, limits, strict=True)]
            failed[places] = [bool(error > most) for error, most in zip(errors, limits, strict=True)]
        return low, high, passed, failed


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What is proved of |actual - exact| <= bound; all arrays have the shape of the output.

    Exactly one of passed, failed and undecided holds for each element. error_low and error_high are
    certified bounds of |actual - exact| from the rung that decided (infinite: NaN or infinity in
    the place of a finite number; NaN: no exact value). rung_counts counts the elements that each
    rung decided.
    """

    passed: Mask
    failed: Mask
    undecided: Mask
    error_low: Array
    error_high: Array
    rung_counts: dict[str, int]


def arb_rungs(values: Callable[..., Balls]) -> Iterator[tuple[str, Comparison]]:
    """Yield the Arb rungs of growing precision; values(open elements, bits=...) computes them."""
    for bits in PRECISIONS:
        yield "arb", partial(values, bits=bits)


def climb(actual: Array, bound: Array, rungs: Iterable[tuple[str, Comparison]]) -> Decision:
    """Return the decision by the first rung that proves each element either way.

    A pass needs a finite error: no NaN passes, not even against an infinite bound. Elements with an
    infinite or NaN bound are looked at by the first rung only.

    Raises:
        ValueError: the shapes of actual and bound do not fit.

    """
    actual = np.asarray(actual, dtype=np.float64)
    limit = np.broadcast_to(np.asarray(bound, dtype=np.float64), actual.shape)
    passed, failed = np.zeros(actual.shape, dtype=bool), np.zeros(actual.shape, dtype=bool)
    low, high = np.zeros(actual.shape), np.full(actual.shape, np.inf)
    counts: dict[str, int] = {}
    still = np.ones(actual.shape, dtype=bool)
    for name, rung in rungs:
        if not still.any():
            break
        compared = rung(still).compare(actual[still], limit[still])
        low[still], high[still], passed[still], failed[still] = compared
        counts[name] = counts.get(name, 0) + int((passed | failed)[still].sum())
        # no rung can help where there is no exact value or nothing finite to compare the error with
        still &= ~(passed | failed | np.isnan(low)) & np.isfinite(limit)
    return Decision(
        passed=passed,
        failed=failed,
        undecided=~(passed | failed),
        error_low=low,
        error_high=high,
        rung_counts=counts,
    )


def _bounds(errors: Sequence[Ball]) -> tuple[Array, Array]:
    """Return float64 bounds of balls of magnitudes."""
    number, tail, radius = parts_of(errors, 2)
    below = np.where(tail < radius, np.maximum(np.nextafter(number, 0.0), 0.0), number)
    return np.where(radius < np.inf, below, 0.0), uppers(errors)
