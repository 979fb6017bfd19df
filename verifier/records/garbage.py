"""How often Python looks for objects that refer to each other in circles and to which nobody else refers."""

from __future__ import annotations

import gc

MADE_BETWEEN = 10_000
"""Objects made and not given back between two looks; Python's 700 took a tenth of a child's time, measured.

Objects that are in no circle go at once, whatever this is.
"""


def look_for_circles_seldom() -> None:
    """Look less often from now on, in this process and in those that it forks; keep out what was imported."""
    gc.freeze()
    gc.set_threshold(MADE_BETWEEN, *gc.get_threshold()[1:])
