"""Arb balls (python-flint): exact sums of floats, and the way from a ball to float64 parts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from verifier.arithmetic import Array
from verifier.oracle.enclosure import Enclosure

Ball = Any
"""flint.arb: a midpoint and a radius that contain the exact value."""

EXACT_BITS: Final = 8192
"""Holds every sum of products of three float64 numbers, and two such sums multiplied by a count, exactly:
6400 bits between the smallest and the largest bit of N * sum(grad * weight * x)."""


@contextmanager
def precision(bits: int) -> Iterator[None]:
    """Work at `bits` bits inside the block (the precision of python-flint is global)."""
    from flint import ctx

    before = ctx.prec
    ctx.prec = bits
    try:
        yield
    finally:
        ctx.prec = before


def ball(number: float) -> Ball:
    """Return the exact ball of a float64."""
    from flint import arb

    return arb(float(number))


def exact_sum(numbers: Iterable[Any]) -> Ball:
    """Return the exact sum of floats or exact balls; call it within precision(EXACT_BITS)."""
    from flint import arb

    total = arb(0)
    for number in numbers:
        total += number
    if not total.is_exact():
        raise ArithmeticError(f"a sum needs more than {EXACT_BITS} bits")
    return total


def upper(value: Ball) -> float:
    """Return a float64 that is at least |value|, infinite where it overflows or is unknown."""
    bound = float(value.abs_upper())
    if bound == 0.0:
        return 0.0 if value.is_zero() else 5e-324
    return math.nextafter(bound, math.inf) if bound == bound else math.inf  # noqa: PLR0124


def parts(value: Ball, count: int) -> tuple[float, ...]:
    """Return `count` float64 numbers, largest first, and the radius around their sum.

    Each part is the nearest float64 to what the parts before it leave. A value outside the range
    of float64 gives zeros with infinite radius.
    """
    numbers = []
    for _ in range(count):
        number = float(value)
        if not math.isfinite(number):
            return (*([0.0] * count), math.inf)
        numbers.append(number)
        value = value - number
    return (*numbers, upper(value))


def enclose(values: Sequence[Ball], shape: tuple[int, ...]) -> Enclosure:
    """Return the enclosure of balls in row-major order; None stands for no exact value."""
    nothing = (math.nan, math.nan, math.nan)
    table = np.array([nothing if value is None else parts(value, 2) for value in values]).reshape(-1, 3)
    high, low, radius = (np.ascontiguousarray(column).reshape(shape) for column in table.T)
    return Enclosure(high=high, low=low, radius=radius)


def bound_above(value: Ball) -> float:
    """Return the smallest float64 that is known to be at least the value (not its magnitude)."""
    high, low, radius = parts(value, 2)
    if math.isinf(radius):
        return math.inf if bool(value > 0) or not value.is_finite() else -1.7976931348623157e308
    return math.nextafter(high, math.inf) if low + radius > 0 else high


def nonnegative(values: Array) -> Array:
    """Return the values with negative ones raised to 0."""
    return np.maximum(values, 0.0)
