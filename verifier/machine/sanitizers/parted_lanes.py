"""Lanes of one warp that have parted: which of their branches runs first is a device's own.

Where lanes of a warp are at one place of the program they are taken to run in step. Between two accesses of
lanes that were at no place together since, nothing says which comes first.
"""

# ruff: noqa: PLR0917 - these are called by position, many times a launch

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.execute.lane_groups import WARP

if TYPE_CHECKING:
    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.execute.companions import Companions

_NOBODY = -1
PARTED = "another lane of its warp has touched in a branch of its own, with nothing to bring them together"


class PartedLanes:
    """Per byte of some memory: the lane that wrote it last and the lanes that have read it since, with turns.

    Of lanes that read it those are forgotten that one which read it later was at a place with meanwhile.
    """

    def __init__(self, size: int) -> None:
        """Take so many bytes that nobody has touched."""
        self.writing_warp: Array = np.full(size, _NOBODY, dtype=np.int64)
        self.reading_warp: Array = np.full(size, _NOBODY, dtype=np.int64)
        self.writer, self.write_turn, self.read_turn = (np.zeros(size, dtype=np.int32) for _ in range(3))
        self.readers: Array = np.zeros(size, dtype=np.uint32)

    def access(
        self, kind: str, cells: Array, keys: Array, lanes: Array, companions: Companions
    ) -> int | None:
        """Note an access; return the first place at which it might come before another, or None.

        keys: numbers of warps, each of its own in the launch. lanes: of the wave.
        """
        warps, own = companions.warp(lanes), companions.lane(lanes)
        apart = self._apart(kind, cells, keys, warps, own, companions)
        if kind == "read":
            self._read(cells, keys, warps, own, companions)
        else:
            self.writing_warp[cells], self.writer[cells] = keys, own
            self.write_turn[cells] = companions.turn
            self.readers[cells] = 0
        return int(np.flatnonzero(apart)[0]) if apart.any() else None

    def _apart(
        self, kind: str, cells: Array, keys: Array, warps: Array, own: Array, companions: Companions
    ) -> Array:
        """Return where another lane of the warp has touched a byte that this one has not met since."""
        if companions.everyone == companions.turn:
            return np.zeros(len(cells), dtype=np.bool_)
        found = companions.together(warps, own, self.writer[cells]) < self.write_turn[cells]
        found &= (self.writing_warp[cells] == keys) & (self.writer[cells] != own)
        if kind != "read":
            found |= self._unmet(cells, keys, warps, own, companions)
        return found

    def _unmet(self, cells: Array, keys: Array, warps: Array, own: Array, companions: Companions) -> Array:
        """Return where one of the lanes that have read a byte has not been met since."""
        readers, since = self.readers[cells], self.read_turn[cells]
        found = np.zeros(len(cells), dtype=np.bool_)
        for lane in range(WARP) if readers.any() else ():
            there = (readers >> np.uint32(lane) & 1 != 0) & (own != lane)
            found |= there & (companions.together(warps, own, np.full(len(own), lane)) < since)
        return np.asarray(found & (self.reading_warp[cells] == keys))

    def _read(self, cells: Array, keys: Array, warps: Array, own: Array, companions: Companions) -> None:
        kept = np.zeros(len(cells), dtype=np.bool_)
        if companions.everyone != companions.turn:
            kept = self._unmet(cells, keys, warps, own, companions)
        kept |= (self.reading_warp[cells] == keys) & (self.read_turn[cells] == companions.turn)
        before = np.where(kept, self.readers[cells], np.uint32(0))
        self.readers[cells] = 0
        np.bitwise_or.at(self.readers, cells, before | np.uint32(1) << own.astype(np.uint32))
        self.reading_warp[cells], self.read_turn[cells] = keys, companions.turn
