"""Arb balls (python-flint): exact sums of floats, and the way from a ball to float64 parts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import numpy as np

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


@cache
def _arb() -> Any:
    """Return flint.arb; python-flint is imported when the first ball is made."""
    from flint import arb

    return arb


def ball(number: float) -> Ball:
    """Return the exact ball of a float64."""
    return _arb()(float(number))


def balls(numbers: Iterable[float]) -> list[Ball]:
    """Return the exact balls of Python floats."""
    return list(map(_arb(), numbers))


def shifted(value: Ball, exponent: int) -> Ball:
    """Return value * 2**exponent, to the precision that is set."""
    return value * _power(exponent)


@cache
def _power(exponent: int) -> Ball:
    return _arb()((1, exponent))


def exact_sum(numbers: Iterable[Any]) -> Ball:
    """Return the exact sum of floats or exact balls; call it within precision(EXACT_BITS)."""
    total = _arb()(0)
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
    """Return the enclosure of balls in row-major order, in two parts each (see `parts`)."""
    high = [float(value) for value in values]
    if not all(map(math.isfinite, high)):
        table = np.array([parts(value, 2) for value in values]).T
        return Enclosure(
            high=table[0].reshape(shape), low=table[1].reshape(shape), radius=table[2].reshape(shape)
        )
    rests = [value - number for value, number in zip(values, high, strict=True)]
    low = [float(rest) for rest in rests]
    tails = [rest - number for rest, number in zip(rests, low, strict=True)]
    sizes = np.array([float(tail.abs_upper()) for tail in tails])
    radius = np.nextafter(sizes, np.inf)
    for k in np.flatnonzero(sizes == 0).tolist():  # exactly 0, or below float64's range
        radius[k] = upper(tails[k])
    return Enclosure(
        high=np.array(high).reshape(shape), low=np.array(low).reshape(shape), radius=radius.reshape(shape)
    )
