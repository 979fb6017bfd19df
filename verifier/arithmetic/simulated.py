"""Arithmetic rounded to any precision: executes a formula as a kernel would, to attack its bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strategies.formats import nearest
from verifier.arithmetic.formats import Array, Format
from verifier.arithmetic.trees.steps import Step
from verifier.arithmetic.trees.tree import Tree


def round_to(format: Format, values: Array, *, flush_to_zero: bool = False) -> Array:
    """Round float64 values to nearest-even in `format`, with gradual underflow (or flush) and overflow.

    One rounding from exact values; a result of one float64 operation on numbers of at most 25 bits
    of precision rounds innocuously (Figueroa 1995).
    """
    rounded = nearest(format, values)
    if flush_to_zero and format.precision < 53:
        rounded = np.where(np.abs(rounded) < format.smallest_normal, np.copysign(0.0, values), rounded)
    return rounded


@dataclass(frozen=True, kw_only=True)
class RoundedArithmetic:
    """Operations that round, on float64 arrays of numbers of `format` (at most 25 bits, or float64)."""

    format: Format
    flush_to_zero: bool = False

    def of(self, exact: Array) -> Array:
        """Round the exact (float64-representable) value of an operation."""
        return round_to(self.format, exact, flush_to_zero=self.flush_to_zero)

    def add(self, a: Array, b: Array) -> Array:
        """Return fl(a + b)."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.of(a + b)

    def subtract(self, a: Array, b: Array) -> Array:
        """Return fl(a - b)."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.of(a - b)

    def multiply(self, a: Array, b: Array) -> Array:
        """Return fl(a * b)."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.of(a * b)

    def multiply_add(self, a: Array, b: Array, c: Array) -> Array:
        """Return fl(a * b + c) with one rounding; two in float64, where no exact product is at hand."""
        if self.format.precision > 25:
            return self.add(self.multiply(a, b), c)
        with np.errstate(over="ignore", invalid="ignore"):
            return self.of(_sum_to_odd(a * b, c))

    def read(self, a: Array) -> Array:
        """Return an input as an operation sees it: subnormal numbers may count as zero."""
        if not self.flush_to_zero:
            return a
        return np.where(np.abs(a) < self.format.smallest_normal, np.copysign(0.0, a), a)

    def divide(self, a: Array, b: Array) -> Array:
        """Return fl(a / b)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.of(a / b)

    def square_root(self, a: Array) -> Array:
        """Return fl(sqrt(a))."""
        with np.errstate(invalid="ignore"):
            return self.of(np.sqrt(a))

    def maximum(self, a: Array, b: Array) -> Array:
        """Return the larger of two, NaN where one is NaN."""
        return np.maximum(a, b)

    def order(self, tree: Tree, terms: Array) -> list[Step]:
        """Return the steps in which each row of terms, (rows, n), is summed: those of the declared tree."""
        return tree.example(terms.shape[1])

    def merge_order(self, tree: Tree, count: int) -> list[Step]:
        """Return the steps in which `count` elements are merged: those of the declared tree."""
        return tree.example(count)

    def cast(self, format: Format, a: Array) -> Array:
        """Return numbers rounded to another format, as this one holds them."""
        return round_to(format, a)


def _sum_to_odd(a: Array, b: Array) -> Array:
    """Return a + b in float64 rounded to odd, so that a second rounding to fewer bits is exact.

    Source: Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008.
    """
    total = np.atleast_1d(a + b)
    part = total - a
    lost = (a - (total - part)) + (b - part)
    even = (total.view(np.int64) & 1) == 0
    inexact = np.isfinite(total) & np.isfinite(lost) & (lost != 0.0)
    towards = np.nextafter(total, np.copysign(np.inf, lost))
    rounded = np.where(inexact & even, towards, total)
    return rounded if np.ndim(a) or np.ndim(b) else rounded[0]
