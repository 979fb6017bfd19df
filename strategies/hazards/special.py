"""Hazards with NaN and infinities."""

import numpy as np

from strategies.draws import Draw
from strategies.formats import Reals

FINITE = False

# What stands at two random places of a poisoned row, or all along it, by strength.
_PAIRS = (
    (np.nan, np.nan),
    (np.inf, np.inf),
    (-np.inf, -np.inf),
    (np.inf, -np.inf),
    (np.nan, np.inf),
)
_WHOLE_ROWS = (np.nan, np.inf, -np.inf)
BEGINNINGS = 5
"""Rows after which those of `infinite_beginning` are of the first kind again."""


def nonfinite(draw: Draw) -> Reals:
    """NaN or infinities in every other row, the first included; numbers near N(0, 1) elsewhere.

    strength: 0 NaN, 1 inf, 2 -inf, 3 inf and -inf, 4 NaN and inf, at one or two random columns;
    5, 6, 7 a whole row of NaN, inf, -inf; then again from 0.
    Aims at: NaN that is swallowed by a maximum or a mask, and rows that poison their neighbours.
    """
    kind = draw.strength % (len(_PAIRS) + len(_WHOLE_ROWS))
    poisoned = np.arange(draw.rows)[:, np.newaxis] % 2 == 0
    values = draw.normal()
    if kind >= len(_PAIRS):
        return np.where(poisoned, _WHOLE_ROWS[kind - len(_PAIRS)], values)
    last = max(draw.columns - 1, 0)
    for stream, special in enumerate(_PAIRS[kind], start=5):
        at = draw.row_integers(0, last, stream=stream)
        values = np.where(poisoned & (draw.column_index == at), special, values)
    return values


def infinite_beginning(draw: Draw) -> Reals:
    """In turn: -inf up to the last column, no such number, -inf up to the second half, -inf alone, one NaN.

    strength: has no effect.
    Aims at: a softmax whose first tile is masked throughout: -inf less the largest so far, -inf, is NaN; and
    rows of which nothing is left, or a NaN is lost, in kernels of long rows alone.
    """
    row = np.arange(draw.rows)[:, np.newaxis] % BEGINNINGS
    last = max(draw.columns - 1, 0)
    drawn = draw.row_integers(draw.columns // 2, max(last, draw.columns // 2), stream=5)
    begins = np.select([row == 0, row == 2, row == 3], [last, drawn, draw.columns], 0)
    values = np.where(draw.column_index < begins, -np.inf, draw.normal())
    return np.where((row == 4) & (draw.column_index == drawn), np.nan, values)
