"""Which blocks of a launch work on chosen rows, where its grid follows the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.execute.findings import UnsupportedFeature

if TYPE_CHECKING:
    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.model import ChosenRows

MOST_ROWS = 16
"""Rows of a block, at most: blocks of more may as well go through all rows in steps."""
_MOST_BLOCKS = 1 << 12


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
    """How a grid follows the rows: along which axis (0, 1 or 2), and how many rows a block has."""

    kernel: str
    axis: int
    rows_per_block: int


def followed(kernel: str, grid: tuple[int, int, int], rows: ChosenRows) -> FollowedRows:
    """Return how the grid follows the rows, if the blocks along one axis can divide them evenly.

    That they do is to be seen from results. Raises RowsNotFollowedError where no axis or several can.
    """
    found = []
    for axis, extent in enumerate(grid):
        share = -(-rows.extent // max(extent, 1))
        if share <= MOST_ROWS and -(-rows.extent // share) == extent:
            found.append(FollowedRows(kernel=kernel, axis=axis, rows_per_block=share))
    if len(found) != 1:
        raise RowsNotFollowedError(grid, kernel)
    return found[0]


def numbers_of(known: FollowedRows, grid: tuple[int, int, int], rows: ChosenRows) -> Array:
    """Return the numbers of all blocks that have a chosen row, in order."""
    if any(extent > _MOST_BLOCKS for axis, extent in enumerate(grid) if axis != known.axis):
        raise RowsNotFollowedError(grid, known.kernel)
    mine = np.unique(np.array(rows.rows) // known.rows_per_block)
    axes = [mine if axis == known.axis else np.arange(extent) for axis, extent in enumerate(grid)]
    x, y, z = np.meshgrid(*axes, indexing="ij")
    return np.sort((x + grid[0] * (y + grid[1] * z)).reshape(-1))
