"""What a process does with memory that nobody uses any more: when it looks for it, and what it keeps."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

MADE_BETWEEN = 10_000
"""Objects made and not given back between two looks; Python's 700 took a tenth of a child's time, measured.

Objects that are in no circle go at once, whatever this is.
"""
LARGEST_KEPT, MOST_KEPT = 1 << 26, 1 << 30
"""Bytes of the largest array whose memory is kept for the next one, and most bytes that are kept.

The usual 32 MiB and 128 KiB give memory back to the system at once, which clears each page anew when it is
touched: a quarter of the time that judging a large case takes, measured. `lazy_tensors.HUGE` is larger.
"""
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # of mallopt(3)


def look_for_circles_seldom() -> None:
    """Look less often from now on, in this process and in those that it forks; keep out what was imported."""
    gc.freeze()
    gc.set_threshold(MADE_BETWEEN, *gc.get_threshold()[1:])


def keep_freed_memory() -> None:
    """Keep freed arrays' memory for the next ones, here and in what is forked; only GNU's C library can."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((_MMAP_THRESHOLD, LARGEST_KEPT), (_TRIM_THRESHOLD, MOST_KEPT)):
            mallopt(parameter, value)
