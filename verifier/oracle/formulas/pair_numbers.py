"""Number type that runs a formula on double-double numbers, each with a radius around it.

|exact - (high + low)| <= radius elementwise; what is not finite is not known. Quotients, roots and logarithms
are not proved step by step: what the answer lacks is computed from it, and bounds its error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import starmap
from typing import TypeVar, cast

import numpy as np

from verifier.arithmetic.abstract_number import Value
from verifier.arithmetic.blocks import in_blocks
from verifier.arithmetic.error_free import double_double
from verifier.arithmetic.error_free.double_double import HIGHER_ORDER_OF_CHAINS, PASSED_ON, Doubled
from verifier.arithmetic.error_free.exponential import EXP_ERROR, EXP_LIMIT, EXP_LOST
from verifier.arithmetic.error_free.numpy_or_torch import NUMPY, Arrays
from verifier.arithmetic.formats import Array
from verifier.oracle.enclosure import UNIT, Enclosure, Mask
from verifier.oracle.exponential import exponential
from verifier.oracle.formulas.unrounded import Unrounded
from verifier.oracle.rows.fast_constants import PUBLISHED
from verifier.oracle.rows.parameter_sums import pair_total
from verifier.oracle.rows.parameters import Grouping

PRODUCT_ERROR = (double_double.PRODUCT_ERROR + HIGHER_ORDER_OF_CHAINS) * UNIT * UNIT
SUM_ERROR = (double_double.SUM_ERROR + HIGHER_ORDER_OF_CHAINS) * UNIT * UNIT
"""What one product or sum of pairs adds to a radius, relative to the high part of its result."""
LARGEST_SUMMAND = 2.0**800
"""Sums of larger numbers are left to Arb: the extraction takes summands up to 2**900."""
SERIES_BELOW = 2.0**-18
"""Below it three terms of a hyperbolic tangent's series err by less than a quotient of exponentials."""
NEAR = 1.0 - 2.0**-50
"""Of a magnitude, what is left at least if its low part and a few roundings are taken away."""


_Operation = TypeVar("_Operation", bound=Callable[..., "CertifiedPair"])


def elementwise(operation: _Operation) -> _Operation:
    """Let an operation on each element of its arguments take large ones a block at a time."""

    @functools.wraps(operation)
    def taken(*given: object) -> CertifiedPair:
        pairs = [one for one in given if isinstance(one, CertifiedPair)]
        others = [one for one in given if not isinstance(one, CertifiedPair)]  # the numbers themselves, first

        def of_parts(*parts: Array) -> tuple[Array, ...]:
            own = (parts[at : at + 3] for at in range(0, len(parts), 3))
            return operation(*others, *starmap(_of_parts, own)).parts

        return _of_parts(*in_blocks(of_parts, *(part for one in pairs for part in one.parts)))

    return cast("_Operation", taken)


@dataclass(frozen=True, kw_only=True)
class CertifiedPair:
    """Numbers high + low, each within `radius` of the exact one; three arrays that broadcast."""

    high: Array
    low: Array
    radius: Array

    @property
    def pair(self) -> Doubled:
        """Both parts."""
        return self.high, self.low

    @property
    def parts(self) -> tuple[Array, Array, Array]:
        """All three arrays."""
        return self.high, self.low, self.radius

    @elementwise
    def __add__(self, other: CertifiedPair) -> CertifiedPair:
        """Return the sum."""
        high, low = double_double.add(self.pair, other.pair)
        passed_on = PASSED_ON * (self.radius + other.radius)
        return CertifiedPair(high=high, low=low, radius=passed_on + SUM_ERROR * np.abs(high))

    def __neg__(self) -> CertifiedPair:
        """Return the negative."""
        return CertifiedPair(high=-self.high, low=-self.low, radius=self.radius)

    def __sub__(self, other: CertifiedPair) -> CertifiedPair:
        """Return the difference."""
        return self + (-other)

    @elementwise
    def __mul__(self, other: CertifiedPair) -> CertifiedPair:
        """Return the product."""
        high, low = double_double.multiply(self.pair, other.pair)
        of_self, of_other = np.abs(self.high), np.abs(other.high)
        passed_on = of_self * other.radius + self.radius * (of_other + other.radius)
        rounding = PRODUCT_ERROR * np.abs(high) + PUBLISHED
        return CertifiedPair(high=high, low=low, radius=PASSED_ON * passed_on + rounding)

    @elementwise
    def __truediv__(self, other: CertifiedPair) -> CertifiedPair:
        """Return the quotient q; |a / b - q| = |a - q * b| / |b|."""
        first = self.high / other.high
        rest = self - _exactly(first, np.zeros_like(first)) * _without_radius(other)
        high, low = double_double.fast_two_sum(first, rest.high / other.high)
        quotient = _exactly(high, low)
        lacking = self - quotient * other
        least = np.abs(other.high) * NEAR - other.radius
        error = PASSED_ON * (np.abs(lacking.high) + lacking.radius) / least
        return CertifiedPair(high=high, low=low, radius=np.where(least > 0, error, np.inf))


def _of_parts(high: Array, low: Array, radius: Array) -> CertifiedPair:
    return CertifiedPair(high=high, low=low, radius=radius)


def _exactly(high: Array, low: Array) -> CertifiedPair:
    return CertifiedPair(high=high, low=low, radius=np.zeros_like(high))


def _without_radius(value: CertifiedPair) -> CertifiedPair:
    return _exactly(value.high, value.low)


def lifted(array: Array) -> CertifiedPair:
    """Return float64 numbers, exactly."""
    return _exactly(array, np.zeros_like(array))


def of_enclosure(value: Enclosure) -> CertifiedPair:
    """Return the numbers that an enclosure of rows holds, (rows, 1)."""
    parts = (np.broadcast_to(part, value.shape) for part in (value.high, value.low, value.radius))
    high, low, radius = (np.asarray(part, dtype=np.float64).reshape(-1, 1) for part in parts)
    return CertifiedPair(high=high, low=low, radius=radius)


@elementwise
def power_of(value: CertifiedPair) -> CertifiedPair:
    """Return e**value, whose argument is at most EXP_LIMIT."""
    high, low = exponential(value.pair)
    lost = np.where(value.high < -EXP_LIMIT, EXP_LOST, 0.0)
    # The radius may lie above the value: what is lost is lost of the largest number it may be.
    grown = np.expm1(np.minimum(value.radius, 2.0 * EXP_LIMIT)) * PASSED_ON
    error = EXP_ERROR * high + lost
    return CertifiedPair(high=high, low=low, radius=PASSED_ON * (error + grown * (high + error)))


@elementwise
def hyperbolic_tangent(value: CertifiedPair) -> CertifiedPair:
    """Return (1 - p) / (1 + p) with p = e**-2|value| and the sign of the value, near 0 its series.

    The series is x - x**3 / 3 + 2 x**5 / 15 - ..., whose terms alternate and fall where |x| < 1, so that what
    is left out is at most the next one, 17 |x|**7 / 315. The slope is at most 1: so is the radius's share.
    """
    sign = np.where(value.high < 0, -1.0, 1.0)
    one, twice = lifted(np.ones((1, 1))), lifted(-2.0 * sign)
    power = power_of(_without_radius(value) * twice)
    far = lifted(sign) * ((one - power) / (one + power))
    x = _without_radius(value)
    square = x * x
    terms = (lifted(np.full((1, 1), c)) for c in (2.0, 15.0, 1.0, 3.0, 1.0))
    two, fifteen, one, three, first = terms
    near = x * (first + square * (square * (two / fifteen) - one / three))
    left_out = np.abs(value.high) ** 7 * 0.06
    small = np.abs(value.high) < SERIES_BELOW
    high, low = (np.where(small, a, b) for a, b in zip(near.pair, far.pair, strict=True))
    radius = np.where(small, near.radius + left_out, far.radius) + PASSED_ON * value.radius
    return CertifiedPair(high=high, low=low, radius=radius)


@dataclass(frozen=True, kw_only=True)
class PairNumbers(Unrounded):
    """`verifier.arithmetic.abstract_number.Numbers` on pairs; `given` are the moments of the rows."""

    rows: int
    columns: int
    parameter: Arrays = "columns"
    given: tuple[CertifiedPair, CertifiedPair] | None = None

    def lift(self, array: Array) -> CertifiedPair:
        """Return float64 numbers, exactly."""
        return lifted(array)

    def constant(self, number: float) -> CertifiedPair:
        """Return an exact constant."""
        return lifted(np.full((1, 1), float(number)))

    def moments(self, _x: Value) -> tuple[CertifiedPair, CertifiedPair]:
        """Return (mean, rstd) of each row, (rows, 1)."""
        assert self.given is not None
        return self.given

    def sum(self, value: CertifiedPair) -> CertifiedPair:
        """Return the sum over each row, (rows, 1)."""
        group = Grouping(kit=NUMPY, kind="rows", index=None, entries=self.rows, count=self.columns)
        return _reshaped(self._total(group, value), (-1, 1))

    def parameter_sum(self, value: CertifiedPair, _held: str | None = None, /, **_: bool) -> CertifiedPair:
        """Return the sums over the entries of weight, (1, entries)."""
        if not isinstance(self.parameter, str):
            index = np.asarray(self.parameter, dtype=np.int64)
            counts = np.bincount(index.ravel())
            group = Grouping(
                kit=NUMPY, kind="index", index=index, entries=counts.size, count=int(counts.max(initial=0))
            )
        elif self.parameter == "rows":
            group = Grouping(kit=NUMPY, kind="rows", index=None, entries=self.rows, count=self.columns)
        else:
            group = Grouping(kit=NUMPY, kind="columns", index=None, entries=self.columns, count=self.rows)
        return _reshaped(self._total(group, value), (1, -1))

    def rsqrt(self, value: CertifiedPair) -> CertifiedPair:
        """Return R = value**-1/2; |R - exact| <= R * |value * R**2 - 1| where that is at most 1/2."""
        first = 1.0 / np.sqrt(np.where(value.high > 0, value.high, np.nan))
        one, root = self.constant(1.0), lifted(first)
        rest = one - _without_radius(value) * root * root
        high, low = double_double.fast_two_sum(first, 0.5 * first * rest.high)
        root = _exactly(high, low)
        lacking = value * root * root - one
        relative = np.abs(lacking.high) + lacking.radius
        error = PASSED_ON * high * relative
        return CertifiedPair(high=high, low=low, radius=np.where(relative <= 0.5, error, np.inf))

    def exp(self, value: CertifiedPair) -> CertifiedPair:
        """Return e**value, whose argument is at most EXP_LIMIT."""
        return power_of(value)

    def tanh(self, value: CertifiedPair, **_: bool) -> CertifiedPair:
        """Return the hyperbolic tangent."""
        return hyperbolic_tangent(value)

    def totals(self, *values: CertifiedPair, of_rows: bool = False) -> CertifiedPair:
        """Return the sums of all elements of each value, (1, how many)."""
        held = replace(self, columns=1) if of_rows else self
        whole = PairNumbers(rows=1, columns=held.rows * held.columns)
        full = (held._full(value) for value in values)
        flat = [
            CertifiedPair(
                high=v.high.reshape(1, -1), low=v.low.reshape(1, -1), radius=v.radius.reshape(1, -1)
            )
            for v in full
        ]
        sums = [whole.sum(value) for value in flat]
        high, low, radius = (
            np.concatenate([getattr(one, part) for one in sums], axis=1) for part in ("high", "low", "radius")
        )
        return CertifiedPair(high=high, low=low, radius=radius)

    def entry(self, value: CertifiedPair, number: int) -> CertifiedPair:
        """Return one number of a parameter, (1, 1)."""
        high, low, radius = (part[:, number : number + 1] for part in (*value.pair, value.radius))
        return CertifiedPair(high=high, low=low, radius=radius)

    @elementwise
    def log(self, value: CertifiedPair) -> CertifiedPair:
        """Return the natural logarithm, as a float near it and what e to its power lacks."""
        first = np.log(np.where(value.high > 0, value.high, np.nan))
        off = value * self.exp(lifted(-first)) - self.constant(1.0)
        # log(1 + t) = t - t**2 / 2 + error, |error| <= |t|**3 / (3 (1 - |t|))
        size = np.abs(off.high) + off.radius
        found = lifted(first) + off - off * off * self.constant(0.5)
        error = np.where(size < 2.0**-20, size**3, np.inf)
        return CertifiedPair(high=found.high, low=found.low, radius=found.radius + error)

    @elementwise
    def sigmoid(self, value: CertifiedPair) -> CertifiedPair:
        """Return 1 / (1 + e**-value): no exponential is larger than 1."""
        sign = np.where(value.high < 0, -1.0, 1.0)
        away = CertifiedPair(high=-sign * value.high, low=-sign * value.low, radius=value.radius)
        power, one = self.exp(away), self.constant(1.0)
        small = value.high < 0
        top = CertifiedPair(
            high=np.where(small, power.high, 1.0),
            low=np.where(small, power.low, 0.0),
            radius=np.where(small, power.radius, 0.0),
        )
        return top / (power + one)

    def maximum(self, value: CertifiedPair) -> CertifiedPair:
        """Return the largest element of each row, (rows, 1): near that of the largest high part."""
        full = self._full(value)
        place = full.high.argmax(axis=1)[:, None]
        high, low = (np.take_along_axis(part, place, axis=1) for part in (full.high, full.low))
        # Of equal high parts any may be the largest: their low parts are this far apart.
        apart = 2.0 * UNIT * np.abs(full.high).max(axis=1, keepdims=True)
        return CertifiedPair(high=high, low=low, radius=full.radius.max(axis=1, keepdims=True) + apart)

    def _full(self, value: CertifiedPair) -> CertifiedPair:
        shape = (self.rows, self.columns)
        parts = (np.ascontiguousarray(np.broadcast_to(p, shape)) for p in (*value.pair, value.radius))
        high, low, radius = parts
        return CertifiedPair(high=high, low=low, radius=radius)

    def _total(self, group: Grouping, value: CertifiedPair) -> Enclosure:
        full = self._full(value)
        high = np.where(np.abs(full.high) <= LARGEST_SUMMAND, full.high, np.nan)
        return pair_total(group, (high, full.low), group.total(full.radius))


def _reshaped(value: Enclosure, shape: tuple[int, int]) -> CertifiedPair:
    high, low, radius = (np.asarray(part).reshape(shape) for part in (value.high, value.low, value.radius))
    return CertifiedPair(high=high, low=low, radius=radius)


def published(value: CertifiedPair, hidden: Mask) -> Enclosure:
    """Return an enclosure of the shape of `hidden`: unknown where something overflowed, NaN where hidden."""
    shape = hidden.shape
    parts = (part.reshape(-1) if len(shape) == 1 else part for part in (*value.pair, value.radius))
    high, low, radius = (np.broadcast_to(part, shape) for part in parts)
    known = np.isfinite(high) & np.isfinite(low) & np.isfinite(radius)
    nan = np.where(hidden, np.nan, 0.0)
    high, low = (np.where(known, part, 0.0) + nan for part in (high, low))
    # 1 + 2**-32 covers the float64 roundings of the radius itself.
    radius = np.where(known, radius * (1.0 + 2.0**-32) + PUBLISHED, np.inf) + nan
    return Enclosure(high=high, low=low, radius=radius)
