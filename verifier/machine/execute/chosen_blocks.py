"""Which blocks of a launch work on chosen rows, where its grid follows the rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.execute.findings import UnsupportedFeature

if TYPE_CHECKING:
    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.model import ChosenRows

MOST_ROWS, MOST_ROWS_OF_MANY = 16, 64
"""Rows of a block, at most, and of one of at least as many blocks: blocks of more may as well go through all
rows in steps."""
_MOST_BLOCKS = 1 << 13
MOST_STEPS = 2000
"""Basic blocks that a grid may run whole beside a huge tensor: one that goes through all its rows runs more,
and is not waited for."""


class RowsNotFollowedError(UnsupportedFeature):
    """A grid of which it is not known which blocks have which rows."""

    def __init__(self, grid: tuple[int, int, int], kernel: str) -> None:
        """Keep the grid."""
        super().__init__(f"a choice of rows in a grid of {grid}", kernel)
        self.grid = grid

    def __str__(self) -> str:
        """Say which grid it is."""
        return f"a grid of {self.grid} does not follow the rows (kernel {self.kernel})"


@dataclass(frozen=True, kw_only=True)
class FollowedRows:
    """How a grid follows the rows: along which axis (0, 1 or 2), and how many rows a block has.

    axis: None where all blocks of the grid run, because none of its axes has to do with rows.
    """

    kernel: str
    axis: int | None
    rows_per_block: int = 0
    grid: tuple[int, int, int] | None = None


def followed(kernel: str, grid: tuple[int, int, int], rows: ChosenRows, number: int) -> FollowedRows:
    """Return how the grid follows the rows, if the blocks along one axis can divide them evenly.

    Of several axes it is that along which blocks have the fewest rows. That they do is to be seen from
    results. A small grid none of whose axes can divide them runs whole.
    number: of the launch; what `rows.as_before` holds of it is demanded.

    Raises:
        RowsNotFollowedError: several axes can alike, the grid is too large to run whole, or is another one.

    """
    found = []
    for axis, extent in enumerate(grid):
        share = -(-rows.extent // max(extent, 1))
        if (share <= MOST_ROWS or share <= min(extent, MOST_ROWS_OF_MANY)) and -(
            -rows.extent // share
        ) == extent:
            found.append(FollowedRows(kernel=kernel, axis=axis, rows_per_block=share))
    if not found and math.prod(grid) <= _MOST_BLOCKS:
        found = [FollowedRows(kernel=kernel, axis=None, grid=grid)]
    found.sort(key=lambda one: one.rows_per_block)
    if not found or (len(found) > 1 and found[0].rows_per_block == found[1].rows_per_block):
        raise RowsNotFollowedError(grid, kernel)
    if rows.as_before is not None and found[0] not in rows.as_before[number : number + 1]:
        raise RowsNotFollowedError(grid, kernel)
    return found[0]


def numbers_of(known: FollowedRows, grid: tuple[int, int, int], rows: ChosenRows) -> Array:
    """Return the numbers of all blocks that have a chosen row, in order; of all where none has any."""
    if known.axis is None:
        return np.arange(math.prod(grid))
    if any(extent > _MOST_BLOCKS for axis, extent in enumerate(grid) if axis != known.axis):
        raise RowsNotFollowedError(grid, known.kernel)
    mine = np.unique(np.array(rows.rows) // known.rows_per_block)
    axes = [mine if axis == known.axis else np.arange(extent) for axis, extent in enumerate(grid)]
    x, y, z = np.meshgrid(*axes, indexing="ij")
    return np.sort((x + grid[0] * (y + grid[1] * z)).reshape(-1))
