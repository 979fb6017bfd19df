"""Special registers: who a thread is, and what surrounds it."""

from __future__ import annotations

from math import prod
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
    """Coordinate of each block in the grid."""
    return _of_blocks(extents, f"%ctaid.{axis}", lambda ids: ids[:, axis])


def _of_blocks(extents: GridExtents, name: str, numbers: Callable[[Array], Array]) -> Array:
    """Give what follows from the coordinates of each block, in an array that changes from wave to wave."""
    if name not in extents.of_blocks:
        column = numbers(extents.block_ids).astype(np.uint32)[:, None]
        extents.of_blocks[name] = np.ascontiguousarray(column), numbers
    return extents.of_blocks[name][0]


def _cluster(extents: GridExtents) -> tuple[int, int, int]:
    return extents.cluster or (1, 1, 1)


def _cluster_along(extents: GridExtents, axis: int) -> Array:
    """Coordinate of each block's cluster among the clusters of the grid."""
    blocks = _cluster(extents)[axis]
    return _of_blocks(extents, f"%clusterid.{axis}", lambda ids: ids[:, axis] // blocks)


def _place_along(extents: GridExtents, axis: int) -> Array:
    """Coordinate of each block in its cluster."""
    blocks = _cluster(extents)[axis]
    return _of_blocks(extents, f"%cluster_ctaid.{axis}", lambda ids: ids[:, axis] % blocks)


def _rank(extents: GridExtents) -> Array:
    """Place of each block among those of its cluster, as `mapa` counts them."""
    x, y, z = _cluster(extents)
    weights = np.array([1, x, x * y])
    return _of_blocks(extents, "%cluster_ctarank", lambda ids: ids % np.array([x, y, z]) @ weights)


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
    "%is_explicit_cluster": lambda extents: int(extents.in_clusters),
    "%cluster_ctarank": _rank,
    "%cluster_nctarank": lambda extents: prod(_cluster(extents)),
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
    "%clusterid": _cluster_along,
    "%nclusterid": lambda extents, axis: extents.grid[axis] // _cluster(extents)[axis],
    "%cluster_ctaid": _place_along,
    "%cluster_nctaid": lambda extents, axis: _cluster(extents)[axis],
}
"""Registers of three values, named with `.x`, `.y` or `.z`."""
