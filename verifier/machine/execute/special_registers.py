"""Special registers: who a thread is, and what surrounds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.execute.extents import GridExtents

_ONE, _TWO = np.uint32(1), np.uint32(2)


def value(extents: GridExtents, name: str) -> Array:
    """Give a special register, in its own shape."""
    word, _, axis = name.partition(".")
    found = _OF_AN_AXIS[word](extents, "xyz".find(axis)) if axis else _WHOLE[name](extents)
    array = np.asarray(found, dtype=np.uint32)
    return array if array.ndim == 2 else array.reshape(1, 1)


def _thread(extents: GridExtents) -> Array:
    return np.arange(extents.threads, dtype=np.uint32)[None]


def _lane(extents: GridExtents) -> Array:
    return _thread(extents) & np.uint32(31)


def _thread_along(extents: GridExtents, axis: int) -> Array:
    """Coordinate of each thread in its block."""
    thread, (x, y, _) = _thread(extents), extents.block
    if axis == 0:
        return thread % np.uint32(x)
    return thread // np.uint32(x) % np.uint32(y) if axis == 1 else thread // np.uint32(x * y)


def _block_along(extents: GridExtents, axis: int) -> Array:
    """Coordinate of each block in the grid, in the array that changes from wave to wave."""
    if axis not in extents.block_numbers:
        numbers = extents.block_ids[:, axis].astype(np.uint32)
        extents.block_numbers[axis] = np.ascontiguousarray(numbers[:, None])
    return extents.block_numbers[axis]


_WHOLE: dict[str, Callable[[GridExtents], Array | int]] = {
    "%laneid": _lane,
    "%warpid": lambda extents: _thread(extents) >> np.uint32(5),
    "%nwarpid": lambda extents: -(-extents.threads // 32),
    "WARP_SZ": lambda extents: 32,
    "%smid": lambda extents: (np.arange(extents.blocks) % extents.multiprocessors)[:, None],
    "%nsmid": lambda extents: extents.multiprocessors,
    "%gridid": lambda extents: 1,
    "%dynamic_smem_size": lambda extents: extents.dynamic_shared,
    "%total_smem_size": lambda extents: extents.shared_used,
    "%is_explicit_cluster": lambda extents: 0,
    "%cluster_ctarank": lambda extents: 0,
    "%cluster_nctarank": lambda extents: 1,
    "%lanemask_eq": lambda extents: _ONE << _lane(extents),
    "%lanemask_lt": lambda extents: (_ONE << _lane(extents)) - _ONE,
    "%lanemask_le": lambda extents: (_TWO << _lane(extents)) - _ONE,
    "%lanemask_ge": lambda extents: ~((_ONE << _lane(extents)) - _ONE),
    "%lanemask_gt": lambda extents: ~((_TWO << _lane(extents)) - _ONE),
}
"""Registers of one value."""
_OF_AN_AXIS: dict[str, Callable[[GridExtents, int], Array | int]] = {
    "%tid": _thread_along,
    "%ntid": lambda extents, axis: extents.block[axis],
    "%ctaid": _block_along,
    "%nctaid": lambda extents, axis: extents.grid[axis],
    "%clusterid": _block_along,
    "%nclusterid": lambda extents, axis: extents.grid[axis],
    "%cluster_ctaid": lambda extents, axis: 0,
    "%cluster_nctaid": lambda extents, axis: 1,
}
"""Registers of three values, named with `.x`, `.y` or `.z`."""
