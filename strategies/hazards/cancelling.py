"""Hazards whose mean dwarfs what varies about it, or whose sum vanishes."""

import numpy as np

from strategies.draws import Draw, power_of_ten
from strategies.formats import Reals


def cancellation(draw: Draw) -> Reals:
    """Mean 10^k and standard deviation 1, k = strength, held at the digits of the dtype.

    Aims at: textbook variance, whose error grows with kappa^2; masked lanes counted in the variance.
    """
    return power_of_ten(min(draw.strength, draw.format.decimal_digits)) + draw.normal()


def near_constant_row(draw: Draw) -> Reals:
    """One number of [1.25, 1.75] per row, with at most strength + 1 units in the last place of noise.

    Aims at: variances that come out zero, negative or wholly wrong, the largest kappa a dtype can hold.
    """
    noise = draw.integers(-draw.strength - 1, draw.strength + 1, stream=4).astype(np.float64)
    return _row_constant(draw) + noise * 2.0 ** (1 - draw.format.precision)


def constant_row(draw: Draw) -> Reals:
    """One number of [1.25, 1.75] per row times 10^strength, the same in all columns.

    Aims at: a mean that is not the number itself, hence a variance above zero and rstd far below 1/sqrt(eps).
    """
    largest = len(str(int(draw.format.maximum))) - 1
    return _row_constant(draw) * power_of_ten(min(draw.strength, largest)) * np.ones(draw.shape)


def alternating_signs(draw: Draw) -> Reals:
    """x, -x, y, -y, ...: the sum is exactly zero; magnitudes spread over `strength` binades.

    Aims at: reductions that drop or repeat a lane, and trees whose halves do not cancel.
    """
    partner = draw.column_index // 2 * 2
    values = np.abs(np.take(draw.normal(), partner[0], axis=1)) + 1.0
    binades = np.take(draw.integers(0, draw.strength, stream=4), partner[0], axis=1)
    signs = np.where(draw.column_index % 2 == 0, 1.0, -1.0)
    unpaired = draw.column_index == draw.columns - draw.columns % 2
    return np.where(unpaired, 0.0, np.ldexp(values, binades.astype(np.int32)) * signs)


def one_outlier(draw: Draw) -> Reals:
    """10^(strength + 1) at one random column of each row, numbers near N(0, 1) elsewhere.

    Aims at: shifts taken from one element, one-pass updates, thread-local statistics that are merged.
    """
    at = draw.row_integers(0, max(draw.columns - 1, 0), stream=5)
    return np.where(draw.column_index == at, power_of_ten(draw.strength + 1), draw.normal())


def single_nonzero(draw: Draw) -> Reals:
    """2^strength at one random column of each row, zeros elsewhere.

    Aims at: elements that one lane skips, reads twice or takes from a neighbouring row.
    """
    at = draw.row_integers(0, max(draw.columns - 1, 0), stream=5)
    return np.where(draw.column_index == at, 2.0**draw.strength, 0.0)


def sorted_row(draw: Draw) -> Reals:
    """Numbers near N(0, 1) in increasing order, about the mean `strength`.

    Aims at: running means and shifts by the first element, which here is the farthest from the mean.
    """
    return np.sort(draw.normal(), axis=1) + draw.strength


def drift(draw: Draw) -> Reals:
    """Ramp from 0 to 10^strength along the row, plus numbers near N(0, 1).

    Aims at: merges of blocks whose means differ, where Chan's correction term is most of the variance.
    """
    ramp = draw.column_index / max(draw.columns - 1, 1)
    return ramp * power_of_ten(draw.strength) + draw.normal()


def _row_constant(draw: Draw) -> Reals:
    """Draw (rows, 1) numbers of [1.25, 1.75] that the format holds; 1.5 when few are to be distinct."""
    if draw.distinct is not None:
        return np.full((draw.rows, 1), 1.5)
    half = 2 ** (draw.format.precision - 2)
    steps = draw.row_integers(half // 2, 3 * half // 2, stream=6)
    return 1.0 + steps.astype(np.float64) * 2.0 ** (1 - draw.format.precision)
