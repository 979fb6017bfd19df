"""Memory that is committed page by page, once it is written: tensors far larger than what there is."""

from __future__ import annotations

import mmap

NO_RESERVE = 0x4000
"""MAP_NORESERVE of Linux, which Python names from 3.13 on: no promise of memory for what is never touched."""


def untouched_pages(octets: int) -> mmap.mmap:
    """Return zeros of so many bytes, unmapped with the last tensor on them.

    Raises:
        OSError, ValueError, OverflowError: there is no room in the address space.

    """
    return mmap.mmap(-1, octets, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
