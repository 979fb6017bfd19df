"""Sets of lanes that execute together, and the grid of warps they form."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from verifier.machine.arithmetic.numerics import Array

WARP = 32


class Group:
    """Lanes at one place of the program: flat lane numbers, sorted. Lane = block * threads + thread."""

    def __init__(self, lanes: Array, threads: int) -> None:
        """`lanes`: (n,) int64."""
        self.ix, self.threads = lanes, threads

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one value for every lane."""
        return tuple(self.ix.shape)

    @cached_property
    def span(self) -> Array | slice:
        """Index of the lanes into flat registers: a slice, which copies nothing, for consecutive lanes."""
        first, last = int(self.ix[0]), int(self.ix[-1])
        return slice(first, last + 1) if last - first == len(self.ix) - 1 else self.ix

    @cached_property
    def it(self) -> Array:
        """Thread number within the block of each lane."""
        return self.ix % self.threads

    @cached_property
    def ib(self) -> Array:
        """Block of the wave of each lane."""
        return self.ix // self.threads

    @cached_property
    def warps(self) -> Warps:
        """The lanes arranged by warp."""
        return Warps(self.ib, self.it)

    @cached_property
    def in_whole_warps(self) -> bool:
        """Whether the lanes are those of whole warps, so that every 32 of them are one."""
        if self.threads % WARP or len(self.ix) % WARP:
            return False
        rows = self.ix.reshape(-1, WARP)
        return not np.count_nonzero(rows[:, 0] % WARP) and bool((rows[:, -1] - rows[:, 0] == WARP - 1).all())

    def lanes_of(self, shape: tuple[int, ...], selection: Array | None) -> Array:
        """Flat lane numbers of the active places of an access."""
        return self.ix if selection is None else self.ix[selection]

    def place_to_lane(self, place: int, shape: tuple[int, ...]) -> int:
        """Lane of a flat place in an array of `shape`, the first lane where the shape has no more."""
        return int(self.ix[place if shape and shape[-1] == len(self.ix) else 0])


class Everyone(Group):
    """All lanes of a wave; values come as (blocks, threads) arrays or broadcast to that."""

    def __init__(self, blocks: int, threads: int) -> None:
        """Take the extents of the wave."""
        super().__init__(np.arange(blocks * threads), threads)
        self.blocks = blocks

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one value for every lane."""
        return self.blocks, self.threads

    @cached_property
    def one(self) -> Everyone:
        """All lanes of one block, which stands for every other where their values are the same."""
        return Everyone(1, self.threads)

    @cached_property
    def warps(self) -> Warps:
        """The lanes arranged by warp, without any searching."""
        return AllWarps(self.blocks, self.threads)

    def lanes_of(self, shape: tuple[int, ...], selection: Array | None) -> Array:
        """Flat lane numbers of the active places; one lane stands for all where the shape is narrower."""
        grid = self.ix.reshape(self.blocks, self.threads)
        if shape != grid.shape:
            extents = [n if s != 1 else 1 for s, n in zip(shape[-2:] or (1, 1), grid.shape, strict=False)]
            grid = grid[: extents[0], : extents[-1]]
        return grid if selection is None else grid[selection]

    def place_to_lane(self, place: int, shape: tuple[int, ...]) -> int:
        """Lane of a flat place in an array of `shape`."""
        rows, columns = shape if len(shape) == 2 else (1, 1)
        row, column = divmod(place, columns)
        return row * self.threads + column if rows * columns > 1 else 0


class Warps:
    """Maps lane values to rows of 32 and back."""

    def __init__(self, blocks: Array, threads: Array) -> None:
        """`blocks`, `threads`: (n,), the coordinates of the lanes present."""
        self.lane = threads % WARP
        key = blocks * 4096 + threads // WARP
        self.keys, self.row = np.unique(key, return_inverse=True)
        self.row_block = self.keys // 4096
        self.present = np.zeros((len(self.keys), WARP), dtype=bool)
        self.present[self.row, self.lane] = True

    def spread(self, values: Array) -> Array:
        """(n,) or scalar values to (warps, 32); absent lanes hold zero."""
        values = np.asarray(values)
        grid = np.zeros(self.present.shape, dtype=values.dtype)
        grid[self.row, self.lane] = values
        return grid

    def collect(self, grid: Array) -> Array:
        """(warps, 32) back to lane order."""
        answer: Array = np.broadcast_to(grid, self.present.shape)[self.row, self.lane]
        return answer


class AllWarps(Warps):
    """Every lane of every block; values are (blocks or 1, threads or 1)."""

    def __init__(self, blocks: int, threads: int) -> None:
        """Take the extents of the wave."""
        self.blocks, self.threads = blocks, threads
        self.per_block = -(-threads // WARP)
        self.padded = self.per_block * WARP
        present = np.arange(self.padded) < threads
        self.row_present = present.reshape(self.per_block, WARP)
        self.present = np.broadcast_to(self.row_present, (blocks, self.per_block, WARP)).reshape(-1, WARP)
        self.row_block = np.repeat(np.arange(blocks), self.per_block)
        self.shared_rows = 0

    def spread(self, values: Array) -> Array:
        """Broadcast values to (blocks, threads) and cut the rows into warps."""
        whole = (self.blocks, self.threads)
        full = values if values.shape == whole else np.broadcast_to(values, whole)
        if self.padded != self.threads:
            wide = np.zeros((self.blocks, self.padded), dtype=full.dtype)
            wide[:, : self.threads] = full
            full = wide
        return full.reshape(-1, WARP)

    def collect(self, grid: Array) -> Array:
        """(warps, 32) back to (blocks, threads)."""
        full = grid if grid.shape == self.present.shape else np.broadcast_to(grid, self.present.shape)
        return full.reshape(self.blocks, self.padded)[:, : self.threads]
