"""Certified intervals around exact values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verifier.arithmetic.blocks import blocks, cut, is_large
from verifier.arithmetic.error_free.double_double import two_sum
from verifier.arithmetic.formats import Array, Format
from verifier.arithmetic.lazy_fields import LazyField
from verifier.arithmetic.simulated import round_to

Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]

Chosen = int | slice | np.ndarray[tuple[int, ...], np.dtype[np.bool_ | np.integer]] | tuple[int | slice, ...]
"""A NumPy index."""

UNIT = 2.0**-53
"""Unit roundoff of float64."""
TINY = 2.0**-1070
"""Covers the underflow of the few float64 operations that evaluate a bound."""
OUTWARD = 4.0 * UNIT
"""Relative widening of a bound: it meets three roundings, its own among them, of UNIT each."""
INWARD = 8.0 * UNIT
"""Relative narrowing of a distance: it meets three roundings as well; the rest is room."""


@dataclass(frozen=True, kw_only=True)
class Enclosure:
    """Elementwise |exact - (high + low)| <= radius.

    high, low, radius: float64 of one shape (low and radius may be broadcast, read-only views).
    A NaN in `high` says that there is no exact value (non-finite inputs); an infinite radius says
    that nothing is known, or that the value is undefined (a row with variance + eps <= 0). An
    infinite `high` is an exact value (the logarithm of a softmax that is exactly zero).
    """

    high: LazyField[Array] = LazyField()
    low: LazyField[Array] = LazyField()
    radius: LazyField[Array] = LazyField()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values."""
        return self.high.shape

    def __getitem__(self, index: Chosen) -> Enclosure:
        """Return the elements that a NumPy index selects."""
        return Enclosure(
            high=np.asarray(self.high[index]),
            low=np.asarray(np.broadcast_to(self.low, self.shape)[index]),
            radius=np.asarray(np.broadcast_to(self.radius, self.shape)[index]),
        )

    def reshape(self, *shape: int) -> Enclosure:
        """Return the same values in another shape."""
        low, radius = (np.broadcast_to(part, self.shape) for part in (self.low, self.radius))
        return Enclosure(high=self.high.reshape(shape), low=low.reshape(shape), radius=radius.reshape(shape))

    def magnitude(self) -> Array:
        """Return an upper bound of |exact|."""
        total = np.abs(self.high) + (np.abs(self.low) + self.radius)
        return np.asarray(total * (1.0 + OUTWARD) + TINY)

    def error_of(self, actual: Array) -> tuple[Array, Array]:
        """Return certified (lower, upper) bounds of |actual - exact|, rounded outwards.

        actual: float64, of the enclosure's shape. A NaN or an infinity in the place of a finite
        exact value has infinite error; where nothing is known the bounds are 0 and infinity, and
        where there is no exact value they are NaN, so that no comparison holds.

        Raises:
            ValueError: the shapes differ.

        """
        actual = np.asarray(actual, dtype=np.float64)
        if actual.shape != self.shape:
            raise ValueError(f"actual has shape {actual.shape}, the exact values {self.shape}")
        if not is_large(self.shape):
            return self._error_of(actual)
        lower, upper = np.empty((2, *self.shape))
        for tile in blocks((self.shape[0], self.shape[1])):
            high, low, radius = (cut(array, tile) for array in (self.high, self.low, self.radius))
            part = Enclosure(high=high, low=low, radius=radius)
            lower[tile], upper[tile] = part._error_of(actual[tile])
        return lower, upper

    def _error_of(self, actual: Array) -> tuple[Array, Array]:
        with np.errstate(invalid="ignore", over="ignore"):
            difference, tail = two_sum(actual, -self.high)
            correction = tail - self.low
            error = np.abs(difference + correction)
            # two roundings, of the correction and of the sum; the rest is float64 evaluation
            slack = (error + np.abs(correction)) * UNIT + self.radius
            upper = (error + slack) * (1.0 + OUTWARD) + TINY
            lower = np.maximum((error - slack * (1.0 + OUTWARD)) * (1.0 - OUTWARD) - TINY, 0.0)
            lower, upper = np.where(np.isnan(upper), 0.0, lower), np.where(np.isnan(upper), np.inf, upper)
        return self._special(actual, lower, upper)

    def compare(self, actual: Array, limit: Array) -> tuple[Array, Array, Mask, Mask]:
        """Return `error_of`, and where the error is proved to be at most `limit`, or above it."""
        low, high = self.error_of(actual)
        return low, high, (high <= limit) & np.isfinite(high), low > limit

    def _special(self, actual: Array, lower: Array, upper: Array) -> tuple[Array, Array]:
        finite = np.isfinite(actual) & np.isfinite(self.high)
        if finite.all():
            return lower, upper
        known = np.isfinite(self.radius)
        same = actual == self.high
        lower = np.where(finite, lower, np.where(known & ~same, np.inf, 0.0))
        upper = np.where(finite, upper, np.where(known & same, 0.0, np.inf))
        undefined = np.isnan(self.high)
        return np.where(undefined, np.nan, lower), np.where(undefined, np.nan, upper)

    def nearest(self, format: Format) -> Array:
        """Return the exact value rounded to nearest-even in `format`, NaN where the radius leaves it open."""
        with np.errstate(invalid="ignore", over="ignore"):
            nudged = self.high
            if format.precision < 53:  # the low part decides near a tie; float64 itself is normalized
                nudged = np.where(self.low > 0, np.nextafter(self.high, np.inf), nudged)
                nudged = np.where(self.low < 0, np.nextafter(self.high, -np.inf), nudged)
            candidate = round_to(format, np.asarray(nudged))
            inside = self._strictly_nearest(candidate, format)
            settled = (self.low == 0) & (self.radius == 0)
            return np.asarray(np.where(inside | settled, candidate, np.nan))

    def _strictly_nearest(self, candidate: Array, format: Format) -> Mask:
        """Return where the exact value lies strictly between the midpoints around the candidate."""
        _, exponent = np.frexp(np.abs(candidate))
        exponent = np.where(candidate == 0, -2000, exponent)  # frexp calls it 0
        smallest = format.minimum_exponent - format.precision + 1
        above = np.ldexp(1.0, np.maximum(exponent - format.precision, smallest) - 1)
        power = np.abs(candidate) == np.ldexp(0.5, exponent)
        below = np.where(
            power, np.ldexp(1.0, np.maximum(exponent - format.precision - 1, smallest) - 1), above
        )
        # distances to the midpoints: the first difference is exact near a midpoint, so that signs are certain
        side = np.where(candidate == 0, np.sign(self.high), np.sign(candidate))
        outward = side * (self.high - candidate)
        room_above = (above - outward) - side * self.low
        room_below = (below + outward) + side * self.low
        room = np.minimum(room_above, room_below) * (1.0 - INWARD)
        return np.asarray((room > self.radius) & np.isfinite(candidate))


def undefined(shape: tuple[int, ...], *, refused: bool = False) -> Enclosure:
    """Return an enclosure of nothing: NaN values (no exact value) or, if refused, an infinite radius."""
    high = np.full(shape, 0.0 if refused else np.nan)
    return Enclosure(high=high, low=np.zeros(shape), radius=np.full(shape, np.inf if refused else np.nan))
