"""How often a process looks for objects that refer to each other in circles."""

import gc

from verifier.records import garbage


def test_circles_are_looked_for_seldom_and_still_found():
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        garbage.look_for_circles_seldom()
        assert gc.get_threshold() == (garbage.MADE_BETWEEN, *before[1:])
        assert gc.get_freeze_count() > frozen
        assert gc.isenabled()
    finally:
        gc.set_threshold(*before)
        if not frozen:
            gc.unfreeze()
