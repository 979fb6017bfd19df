"""Arb balls (python-flint): exact sums of floats, and the way from a ball to float64 parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import repeat
from operator import is_
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from verifier.arithmetic.formats import Array
from verifier.oracle.enclosure import Enclosure

if TYPE_CHECKING:
    from flint import arb

Ball: TypeAlias = "arb"
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
def _arb() -> type[arb]:
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


def exact_sum(numbers: Iterable[Ball | float]) -> Ball:
    """Return the exact sum of floats or exact balls; call it within precision(EXACT_BITS)."""
    total = _arb()(0)
    for number in numbers:
        total = total + number
    if not total.is_exact():
        raise ArithmeticError(f"a sum needs more than {EXACT_BITS} bits")
    return total


def uppers(values: Sequence[Ball]) -> Array:
    """Return float64 numbers that are at least |value|, infinite where it overflows or is unknown."""
    bounds = np.array([float(value.abs_upper()) for value in values], dtype=np.float64)
    with np.errstate(over="ignore"):  # infinity is what follows the largest number
        above = np.where(np.isnan(bounds), np.inf, np.nextafter(bounds, np.inf))
    for i in np.flatnonzero(bounds == 0).tolist():  # exactly 0, or below float64's range
        above[i] = 0.0 if values[i].is_zero() else 5e-324
    return above


def upper(value: Ball) -> float:
    """Return `uppers` of one value."""
    return float(uppers([value])[0])


def parts_of(values: Sequence[Ball], count: int) -> Array:
    """Return (count + 1, values): `count` float64 numbers of each, largest first, and the radius around them.

    Each part is the nearest float64 to what the parts before it leave. A value outside the range
    of float64 gives zeros with infinite radius. One ball that stands for all rows is taken apart once.
    """
    if len(values) > 1 and all(map(is_, values, repeat(values[0]))):
        return np.repeat(parts_of(values[:1], count), len(values), axis=1)
    table, rests = np.zeros((count + 1, len(values))), values
    for k in range(count):
        numbers = [float(rest) for rest in rests]
        table[k] = numbers
        rests = [rest - number for rest, number in zip(rests, numbers, strict=True)]
    table[count] = uppers(rests)
    lost = ~np.isfinite(table[:count]).all(0)
    table[:count, lost], table[count, lost] = 0.0, np.inf
    return table


def parts(value: Ball, count: int) -> tuple[float, ...]:
    """Return `parts_of` one value."""
    return tuple(parts_of([value], count)[:, 0].tolist())


def enclose(values: Sequence[Ball], shape: tuple[int, ...]) -> Enclosure:
    """Return the enclosure of balls in row-major order, in two parts each (see `parts_of`)."""
    high, low, radius = parts_of(values, 2)
    return Enclosure(high=high.reshape(shape), low=low.reshape(shape), radius=radius.reshape(shape))
