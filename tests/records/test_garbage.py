"""How often a process looks for objects that refer to each other in circles, and what memory it keeps."""

import gc
import platform
import subprocess
import sys

import pytest

from verifier.machine.device.lazy_tensors import HUGE
from verifier.records import garbage

FAULTS = """
import resource
import numpy as np
from verifier.records.garbage import keep_freed_memory
if {kept}:
    keep_freed_memory()
np.ones(1 << 22), np.ones(1 << 22)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    np.ones(1 << 22)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


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


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only the C library of GNU keeps memory on demand"
)
def test_memory_of_a_freed_array_is_not_cleared_by_the_system_for_the_next():
    """An array of 32 MiB touches 8192 pages, or 16 huge ones, whenever it is made anew."""
    new, kept = (
        int(subprocess.check_output([sys.executable, "-c", FAULTS.format(kept=kept)]))
        for kept in (False, True)
    )
    assert kept < 4 < new / 8


def test_what_is_to_be_zeros_of_the_system_is_larger_than_what_is_kept():
    assert garbage.LARGEST_KEPT < HUGE
