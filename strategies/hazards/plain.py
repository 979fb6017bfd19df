"""Hazards with no cancellation: everyday numbers, and numbers on which arithmetic is exact."""

import math

import numpy as np

from strategies.draws import Draw, exp2, power_of_ten
from strategies.formats import Reals


def ordinary(draw: Draw) -> Reals:
    """Numbers near N(0, 1), what every other test suite feeds.

    Aims at: wrong formulas, dropped tail elements, masked lanes, wrong strides. strength: none.
    """
    return draw.normal()


def zeros(draw: Draw) -> Reals:
    """Zeros; with strength > 0 some of them negative.

    Aims at: 0/0 where eps is forgotten, zero weight in backwards that divide by it, unwritten outputs.
    """
    return np.zeros(draw.shape) * (draw.signs() if draw.strength else 1.0)


def small_integers(draw: Draw) -> Reals:
    """Integers of at most strength + 1 in magnitude.

    Aims at: wrong formulas; sums of them are exact in any order, so that a wrong bit is no rounding error.
    """
    return draw.integers(-draw.strength - 1, draw.strength + 1).astype(np.float64)


def powers_of_two(draw: Draw) -> Reals:
    """Powers of two with random signs, from 2^-(strength + 1) to 2^(strength + 1).

    Aims at: products and squares are exact, so that only sums round.
    """
    exponents = draw.integers(-draw.strength - 1, draw.strength + 1)
    return np.ldexp(draw.signs(), exponents.astype(np.int32))


def two_level(draw: Draw) -> Reals:
    """1 or 2^(strength + 1), at random.

    Aims at: sums that lose the smaller level, variances of rows that are far from normal.
    """
    return 1.0 + draw.integers(0, 1).astype(np.float64) * (2.0 ** (draw.strength + 1) - 1.0)


def lognormal(draw: Draw) -> Reals:
    """2^(z (strength + 1)) with z near N(0, 1): positive and skew.

    Aims at: few elements that make most of the variance, so that one element's error shows.
    """
    return exp2(draw.normal() * (draw.strength + 1))


def eps_scale(draw: Draw) -> Reals:
    """Numbers of standard deviation sqrt(10^-(5 + strength)): the variance is about a norm's epsilon.

    Aims at: epsilon outside of the root, forgotten, added twice, or rounded to half precision.
    """
    return draw.normal() * math.sqrt(power_of_ten(-5 - draw.strength))
