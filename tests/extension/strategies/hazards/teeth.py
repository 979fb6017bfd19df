"""Hazards of an extension."""

import numpy as np

from strategies.draws import Draw
from strategies.formats import Reals


def saw_teeth(draw: Draw) -> Reals:
    """0, 1, 2, ... up to strength + 1, and from 0 again.

    Aims at: columns that are taken in another order than they stand.
    """
    return np.broadcast_to(np.arange(draw.columns) % (draw.strength + 2), draw.shape).astype(np.float64)
