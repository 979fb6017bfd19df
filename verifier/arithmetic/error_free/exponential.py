"""Exponentials of double-double numbers with a proved relative error; libm is not used.

With k = round(64 a / ln 2) and r = a - k ln 2 / 64, |r| <= 0.0055, exp(a) = 2**(k div 64) *
2**((k mod 64) / 64) * exp(r). The parts of the error, relative to the result:

- r: k * HEAD and k * MIDDLE are exact (17 + 35 bits); three pair sums below 0.0075 and the rounding
  of k * TAIL leave 2**-108;
- the Taylor tail from degree 6 in float64 errs by 16 u / 720, times r**6: 2**-103.4; ending it at
  degree 12 leaves 0.0055**13 / 13! < 2**-130;
- six pair sums and products, of which only the last counts fully: 4.2 u**2 < 2**-103.9;
- the table and one product: 9.2 u**2 < 2**-102.7.

Together less than 2**-101.3; `EXP_ERROR` claims 2**-100.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from verifier.arithmetic.error_free import double_double
from verifier.arithmetic.error_free.double_double import Doubled
from verifier.arithmetic.formats import Array

EXP_ERROR: Final = 2.0**-100
"""Relative error of `exponential`; see the module."""
EXP_LIMIT: Final = 650.0
"""Arguments of larger magnitude are not taken: e**-650 = 2**-937.7 keeps all products normal."""
EXP_LOST: Final = 2.0**-930
"""Absolute error where an argument below -EXP_LIMIT is answered by 0."""
STEPS: Final = 64
"""Parts of a binade."""
LAST_DEGREE: Final = 12
"""Degree of the Taylor polynomial."""
_HIGH_DEGREE: Final = 5


@dataclass(frozen=True, kw_only=True)
class Tables:
    """ln 2 / 64 in three parts (35, 35 and 53 bits), 2**(j/64) and 1/j! as pairs, 64 / ln 2."""

    head: float
    middle: float
    tail: float
    inverse: float
    powers_high: Array
    powers_low: Array
    reciprocal_factorials: tuple[tuple[float, float], ...]


def exponential(argument: Doubled, tables: Tables) -> Doubled:
    """Return e**argument for normalized pairs, within EXP_ERROR relative; tables: correctly rounded.

    argument: float64 arrays, |argument| <= EXP_LIMIT; below -EXP_LIMIT (also -inf) the answer is 0, which
    errs by less than EXP_LOST, above it NaN.
    """
    far = ~(argument[0] >= -EXP_LIMIT)
    high, low = (np.where(far, 0.0, part) for part in argument)
    high = np.where(high > EXP_LIMIT, np.nan, high)
    steps = np.rint(high * tables.inverse)
    rest = _reduced((high, low), steps, tables)
    index = np.where(np.isfinite(steps), steps, 0.0).astype(np.int64)
    place = index & (STEPS - 1)
    power = (tables.powers_high[place], tables.powers_low[place])
    value = double_double.multiply(_polynomial(rest, tables), power)
    scale = np.where(far, 0.0, np.ldexp(1.0, (index - place) // STEPS))
    return value[0] * scale, value[1] * scale


def _reduced(argument: Doubled, steps: Array, tables: Tables) -> Doubled:
    rest = double_double.two_sum(argument[0], -steps * tables.head)
    rest = double_double.shift(rest, -steps * tables.middle)
    rest = double_double.shift(rest, argument[1])
    return double_double.shift(rest, -steps * tables.tail)


def _polynomial(rest: Doubled, tables: Tables) -> Doubled:
    factors = tables.reciprocal_factorials
    tail = np.full_like(rest[0], factors[LAST_DEGREE][0])
    for degree in range(LAST_DEGREE - 1, _HIGH_DEGREE, -1):
        tail = tail * rest[0] + factors[degree][0]
    halves = double_double.split(rest[0])
    value = double_double.add(double_double.scale(rest, tail, halves=halves), _pair(factors[_HIGH_DEGREE]))
    for degree in range(_HIGH_DEGREE - 1, -1, -1):
        value = double_double.add(double_double.multiply(rest, value, halves), _pair(factors[degree]))
    return value


def _pair(number: tuple[float, float]) -> Doubled:
    return np.float64(number[0]), np.float64(number[1])
