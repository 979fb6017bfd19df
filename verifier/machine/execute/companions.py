"""When lanes of a warp were last at one place of the program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.execute.lane_groups import WARP, Everyone

if TYPE_CHECKING:
    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.execute.lane_groups import Group


class Companions:
    """Counts the blocks of code that a wave has executed, and notes which lanes of a warp executed each.

    turn: how many there were. everyone: the last one that all lanes executed.
    """

    def __init__(self, blocks: int, threads: int) -> None:
        """Take the extents of the wave; nothing has been executed."""
        self.blocks, self.threads, self.per_block = blocks, threads, -(-threads // WARP)
        self.turn = self.everyone = 0
        self._pairs: Array = np.zeros((0, WARP, WARP), dtype=np.int32)

    def execute(self, group: Group) -> None:
        """Note that a group executes the next block."""
        self.turn += 1
        if isinstance(group, Everyone):
            self.everyone = self.turn
            return
        if not self._pairs.size:
            self._pairs = np.zeros((self.blocks * self.per_block, WARP, WARP), dtype=np.int32)
        present = np.zeros((self.blocks * self.per_block, WARP), dtype=np.bool_)
        present[self.warp(group.ix), self.lane(group.ix)] = True
        found = np.flatnonzero(present.any(axis=1))
        together = present[found][:, :, None] & present[found][:, None, :]
        self._pairs[found] = np.where(together, np.int32(self.turn), self._pairs[found])

    def warp(self, lanes: Array) -> Array:
        """Return the number of the warp in its wave."""
        return np.asarray(lanes // self.threads * self.per_block + lanes % self.threads // WARP)

    def lane(self, lanes: Array) -> Array:
        """Return the number of the lane in its warp."""
        return np.asarray(lanes % self.threads % WARP)

    def together(self, warps: Array, one: Array, other: Array) -> Array:
        """Return the last turn that two lanes of a warp have executed together."""
        if not self._pairs.size:
            return np.full(np.shape(warps), self.everyone)
        return np.maximum(self._pairs[warps, one, other], self.everyone)
