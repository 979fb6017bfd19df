"""Hazards at the ends of the exponent range, where squares and sums leave it."""

import math

import numpy as np

from strategies.draws import Draw, Integers
from strategies.formats import Reals


def wide_exponents(draw: Draw) -> Reals:
    """Exponents uniform over (strength + 1) / 8 of the dtype's range, about 0; 7 and more take all of it.

    Aims at: absorption in sums, squares that are rarely representable, subnormals and the largest in one row.
    """
    part = min(draw.strength + 1, 8)
    low = -(-draw.format.subnormal_exponent * part // 8)
    high = draw.format.maximum_exponent * part // 8
    return _scaled(draw, draw.integers(low, high))


def overflow_of_squares(draw: Draw) -> Reals:
    """Numbers about the square root of the largest, up to `strength` more binades away.

    Aims at: sums of squares that become infinite although mean and output are ordinary numbers.
    """
    middle = (draw.format.maximum_exponent + 1) // 2
    return _scaled(draw, draw.integers(middle - 1 - draw.strength, middle + draw.strength))


def underflow_of_squares(draw: Draw) -> Reals:
    """Numbers about the square root of the smallest normal, up to `strength` more binades away.

    Aims at: squares that become subnormal or zero, so that only epsilon is left of the variance.
    """
    middle = draw.format.minimum_exponent // 2
    return _scaled(draw, draw.integers(middle - 1 - draw.strength, middle + draw.strength))


def subnormal(draw: Draw) -> Reals:
    """Subnormal numbers and zeros, of (strength + 1) / 8 of the significand's bits; 7 and more take all.

    Aims at: flushes to zero, and casts from float32 that lose half subnormals.
    """
    bits = math.ceil((draw.format.precision - 1) * min(draw.strength + 1, 8) / 8)
    magnitudes = draw.integers(0, 2**bits - 1)
    # signs come first: the smallest subnormal of float64 bears no scale of its own
    return np.ldexp(magnitudes * draw.signs(), draw.format.subnormal_exponent)


def max_magnitude(draw: Draw) -> Reals:
    """Numbers that are the largest of the topmost `strength` + 1 binades; half of the rows have one sign.

    Aims at: sums that overflow before they are divided, means computed as sum / N.
    """
    binades = -draw.integers(0, draw.strength)
    signs = np.where(draw.row_integers(0, 1) == 0, 1.0, draw.signs())
    return np.ldexp(draw.format.maximum * signs, binades.astype(np.int32))


def ties(draw: Draw) -> Reals:
    """Numbers of [1, 2) halfway between two numbers of the next narrower format.

    strength: even for float16 (bfloat16 from float16), odd for bfloat16; one bit less where none is narrower.
    Aims at: truncation in the place of rounding, ties away from zero, double rounding.
    """
    own = draw.format.precision
    wanted = 8 if draw.strength % 2 else 11
    kept = next((bits for bits in (wanted, 8) if bits < own), own - 1)
    odd = 2 * draw.integers(0, 2 ** (kept - 1) - 1) + 1
    return (1.0 + odd * 2.0**-kept) * draw.signs()


def _scaled(draw: Draw, exponents: Integers) -> Reals:
    """Give random significands and signs these exponents."""
    return np.ldexp(draw.significands() * draw.signs(), exponents.astype(np.int32))
