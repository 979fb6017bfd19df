"""The element of an output that comes closest to its bound, looked for in a part of the output at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from verifier.arithmetic.blocks import blocks, is_large
from verifier.arithmetic.formats import FORMATS, Array
from verifier.bounds.variance import Mask


@dataclass(frozen=True, kw_only=True)
class Judged:
    """An output beside what it should be, all in one shape, of two axes where it is large.

    error, bound: absolute; an error below zero is none. covered: where the bound is proved. expected: exact
    values; scale: the root mean square of their rows; unit: that of `row_ulp`. yard: the bound of the
    canonical kernel, and where it is proved, if it has any. format_name: of the output.
    """

    error: Array
    bound: Array
    covered: Mask
    expected: Array
    scale: Array
    unit: Array
    yard: tuple[Array, Mask] | None
    format_name: str

    def within(self, tile: tuple[slice, slice]) -> Judged:
        """Return a part of it."""
        return Judged(
            error=self.error[tile],
            bound=self.bound[tile],
            covered=self.covered[tile],
            expected=self.expected[tile],
            scale=self.scale[tile],
            unit=self.unit[tile],
            yard=None if self.yard is None else (self.yard[0][tile], self.yard[1][tile]),
            format_name=self.format_name,
        )


@dataclass(kw_only=True)
class WorstElement:
    """The worst element of what was looked at, as `Worst` has it.

    place: in row-major order, the first where several are as bad. some: whether a bound is proved of any
    element of the output; then those without one are left out of everything.
    """

    some: bool
    place: int = 0
    utilisation: float = math.nan
    ulp: float = 0.0
    row_ulp: float = 0.0
    nonzero_row_ulp: float = 0.0
    _rank: float = -math.inf
    _ratios: list[float] = field(default_factory=list)

    @property
    def canonical(self) -> float:
        """The largest error / bound of the canonical kernel."""
        return float(np.max(self._ratios)) if self._ratios else math.nan

    def take(self, part: Judged, place_of: Callable[[int], int]) -> None:
        """Look at a part of the output; place_of: gives the place of an element of it in the whole."""
        error, covered, expected = np.maximum(part.error, 0.0), part.covered, np.abs(part.expected)
        with np.errstate(all="ignore"):
            utilisation = np.where(part.bound > 0, error / part.bound, np.where(error > 0, np.inf, 0.0))
            ulp, row_ulp = error / ulp_of(expected, part.format_name), error / part.unit
            ranked = np.where(covered, utilisation, -1.0) if self.some else ulp
        known = np.where(np.isnan(ranked), -2.0, ranked)
        local = int(np.argmax(known))
        rank, place = float(known.reshape(-1)[local]), place_of(local)
        if rank > self._rank or (rank == self._rank and place < self.place):
            self._rank, self.place = rank, place
            self.utilisation = float(utilisation.reshape(-1)[local])
        within = covered if self.some else np.ones_like(covered)
        apart = within & (expected > np.where(covered, part.bound, 0.0)) & np.isfinite(part.scale)
        self.ulp = _larger(self.ulp, ulp[within])
        self.row_ulp = _larger(self.row_ulp, row_ulp[within])
        self.nonzero_row_ulp = _larger(self.nonzero_row_ulp, row_ulp[apart])
        if part.yard is not None:
            bound, proved = part.yard
            usable = within & proved & (bound > 0)
            if usable.any():
                with np.errstate(all="ignore"):
                    self._ratios.append(float(np.max(error[usable] / bound[usable])))


def worst_of(judged: Judged) -> WorstElement:
    """Return the worst element of an output; what is made of a large one stays in the processor's cache."""
    found, shape = WorstElement(some=bool(judged.covered.any())), judged.error.shape
    if not is_large(shape):
        found.take(judged, int)
        return found
    for tile in blocks((shape[0], shape[1])):
        part = judged.within(tile)
        top, left, columns = tile[0].start, tile[1].start, part.error.shape[1]

        def place_of(local: int, top: int = top, left: int = left, columns: int = columns) -> int:
            return int((top + local // columns) * shape[1] + left + local % columns)

        found.take(part, place_of)
    return found


def _larger(before: float, values: Array) -> float:
    return float(np.maximum(before, np.max(values, initial=0.0)))


def ulp_of(magnitude: Array, format_name: str) -> Array:
    """Return the unit in the last place of a format at max(magnitude, smallest normal)."""
    held = FORMATS[format_name]
    with np.errstate(invalid="ignore"):
        _, exponent = np.frexp(np.maximum(magnitude, held.smallest_normal))
    return np.asarray(np.ldexp(1.0, np.where(np.isfinite(magnitude), exponent, 0) - held.precision))
