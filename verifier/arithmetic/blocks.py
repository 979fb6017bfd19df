"""Blocks of large arrays: what one step makes for the next stays in the cache, and bits do not change.

Taken as wholes, arrays of a million elements are written to memory and read from it at each of the dozens of
steps of a bound, and each result is memory that the system clears first: that takes five times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import numpy as np

MOST = 1 << 15
"""Elements of a block: a quarter of a megabyte in float64, of which some ten are in use."""
Tile = tuple[slice, slice]
_Number = TypeVar("_Number", bound=np.generic)


def blocks(shape: tuple[int, int]) -> Iterator[Tile]:
    """Yield the parts of an array, each of two rows and two columns or more, where the array has so many.

    So an axis of one element is one along which an array does not vary, in a block as in the whole.
    """
    rows, columns = shape
    wide = max(MOST // 2, 2) if columns > MOST // 2 else max(columns, 1)
    high = max(MOST // wide, 2)
    for top in _starts(rows, high):
        for left in _starts(columns, wide):
            yield slice(*top), slice(*left)


def is_large(shape: tuple[int, ...]) -> bool:
    """Whether an array is worth taking by blocks."""
    return len(shape) == 2 and shape[0] * shape[1] > 2 * MOST


def cut(
    array: np.ndarray[tuple[int, ...], np.dtype[_Number]], block: Tile
) -> np.ndarray[tuple[int, ...], np.dtype[_Number]]:
    """Return the part of an array (rows or 1, columns or 1) that belongs to a block."""
    rows, columns = (
        part if extent > 1 else slice(None) for part, extent in zip(block, array.shape, strict=True)
    )
    return array[rows, columns]


class Whole(Generic[_Number]):
    """An array that is put together of its blocks."""

    def __init__(self, shape: tuple[int, int]) -> None:
        """Begin with no block; shape: that of what is cut, along whose axes the array may not vary."""
        self._shape = shape
        self._array: np.ndarray[tuple[int, ...], np.dtype[_Number]] | None = None

    def put(self, block: Tile, part: np.ndarray[tuple[int, ...], np.dtype[_Number]]) -> None:
        """Put one block in."""
        if self._array is None:
            shape = tuple(
                1 if own == 1 else extent for own, extent in zip(part.shape, self._shape, strict=True)
            )
            self._array = np.empty(shape, dtype=part.dtype)
        cut(self._array, block)[...] = part

    def array(self) -> np.ndarray[tuple[int, ...], np.dtype[_Number]]:
        """Return the whole."""
        assert self._array is not None
        return self._array


def in_blocks(
    operation: Callable[..., tuple[np.ndarray[tuple[int, ...], np.dtype[_Number]], ...]],
    *arrays: np.ndarray[tuple[int, ...], np.dtype[_Number]],
) -> tuple[np.ndarray[tuple[int, ...], np.dtype[_Number]], ...]:
    """Return what an elementwise operation makes of arrays that broadcast; large ones are taken by blocks.

    operation: takes as many arrays, and returns some of the shape that its own broadcast to, or that do.
    """
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    if not is_large(shape):
        return operation(*arrays)
    rows, columns = shape
    matrices = np.atleast_2d(*arrays) if len(arrays) > 1 else arrays
    wholes: list[Whole[_Number]] = []
    for block in blocks((rows, columns)):
        found = operation(*(cut(array, block) for array in matrices))
        wholes = wholes or [Whole((rows, columns)) for _ in found]
        for whole, part in zip(wholes, found, strict=True):
            whole.put(block, part)
    return tuple(whole.array() for whole in wholes)


def _starts(extent: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield the beginning and the end of each part; the last is longer rather than of one element."""
    start = 0
    while start < extent:
        end = extent if extent - start - step < 2 else start + step
        yield start, end
        start = end
