"""The exponential of double-double numbers, with tables made of balls."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from verifier.arithmetic.error_free import exponential as error_free
from verifier.arithmetic.error_free.double_double import Doubled
from verifier.arithmetic.error_free.exponential import LAST_DEGREE, STEPS, Tables
from verifier.oracle.balls import ball, parts, precision


def exponential(argument: Doubled) -> Doubled:
    """Return e**argument for normalized pairs; see `verifier.arithmetic.error_free.exponential`."""
    return error_free.exponential(argument, tables())


@cache
def tables() -> Tables:
    """Return the tables, each number rounded from 300 bits."""
    with precision(300):
        step = ball(2.0).log() / STEPS
        head = _cut_to_35_bits(float(step))
        middle = _cut_to_35_bits(float(step - head))
        tail = float(step - head - middle)
        powers = np.array([parts((step * j).exp(), 2)[:2] for j in range(STEPS)])
        factorials = tuple(parts(1 / ball(float(math.factorial(j))), 2)[:2] for j in range(LAST_DEGREE + 1))
        inverse = float(1 / step)
    return Tables(
        head=head,
        middle=middle,
        tail=tail,
        inverse=inverse,
        powers_high=powers[:, 0].copy(),
        powers_low=powers[:, 1].copy(),
        reciprocal_factorials=tuple((high, low) for high, low in factorials),
    )


def _cut_to_35_bits(number: float) -> float:
    """Return the number cut to 35 bits, so that its product with 17 bits is exact."""
    mantissa, exponent = math.frexp(number)
    return math.ldexp(math.floor(math.ldexp(mantissa, 35)), exponent - 35)
