"""Asynchronous copies: the bytes arrive when they are waited for, not before."""

# ruff: noqa: PLR0917 - these are called by position, many times a launch

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.execute.lane_groups import Group
    from verifier.machine.execute.memory import Located

_LARGEST = 1 << 26
"""Bytes of a region up to which it is watched, as those are that races are looked for in."""


@dataclass(kw_only=True)
class Pending:
    """A `cp.async` that has not been waited for.

    group: for each lane how many groups it has closed since the copy's own; -1 where that is still open.
    """

    lanes: Array
    site: int
    target: Array
    source: Array
    size: int
    active: Array
    full: Array
    group: Array

    def of(self, some: Array) -> Pending:
        """Give the part of some of its lanes."""
        return replace(
            self,
            lanes=self.lanes[some],
            target=self.target[some],
            source=self.source[some],
            full=self.full[some],
            group=self.group[some],
        )

    def step(self) -> int:
        """Bytes that are moved at a time: as many as divide what is copied and what is read of it."""
        return next(n for n in (8, 4, 2, 1) if self.size % n == 0 and not (self.full % n).any())


@dataclass(kw_only=True)
class InFlight:
    """Bytes of each region, by its number, that copies on their way read or write: by how many lanes."""

    copies: dict[int, Array] = field(default_factory=dict)

    def note(self, found: Located, width: int, change: int) -> None:
        """Count lanes that begin (1) or end (-1) to copy `width` bytes each."""
        number = found.region.number
        if found.region.size > _LARGEST:
            return
        if number not in self.copies:
            self.copies[number] = np.zeros(found.region.size, dtype=np.int32)
        cells = found.offsets.reshape(-1)[:, None] + np.arange(width)
        np.add.at(self.copies[number], cells.reshape(-1), change)

    def met(self, found: Located, width: int) -> Array:
        """Give the places, of lanes one after the other, at which an access meets such bytes."""
        counts = self.copies.get(found.region.number)
        if counts is None:
            return np.zeros(0, dtype=np.int64)
        cells = found.offsets.reshape(-1)[:, None] + np.arange(width)
        return np.flatnonzero(counts[cells].any(axis=1))


class AsyncCopies:
    """The copies that one wave has started; where accesses are watched, also which bytes they are about."""

    def __init__(self) -> None:
        """Begin with none on its way."""
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self.pending: list[Pending] = []
        self.reads, self.writes = InFlight(), InFlight()

    def start(
        self,
        site: int,
        group: Group,
        target: Array,
        source: Array,
        size: int,
        actual: Array,
        mask: Array | None,
    ) -> Pending:
        """Remember a `cp.async` of `size` bytes a lane, of which `actual` are read and the rest zero."""
        whole = group.shape
        active = np.ones(whole, dtype=bool) if mask is None else np.broadcast_to(mask, whole)

        def pick(x: Array) -> Array:
            return np.broadcast_to(x, whole)[active]

        lanes = _lanes(group, mask)
        copy = Pending(
            lanes=lanes,
            site=site,
            target=pick(target).astype(np.uint64),
            source=pick(source),
            size=size,
            active=active,
            full=pick(actual).astype(np.int64),
            group=np.full(len(lanes), -1, dtype=np.int64),
        )
        self.pending.append(copy)
        return copy

    def commit(self, group: Group, mask: Array | None) -> None:
        """Close the open group of copies of these lanes."""
        lanes = _lanes(group, mask)
        for entry in self.pending:
            entry.group[np.isin(entry.lanes, lanes)] += 1

    def take(self, group: Group, remaining: int | None, mask: Array | None) -> list[Pending]:
        """Give what these lanes wait for: all of their copies but those of the last `remaining` groups.

        remaining: None means even those of the open group.
        """
        keep, due, lanes = [], [], _lanes(group, mask)
        for entry in self.pending:
            over = np.isin(entry.lanes, lanes)
            if remaining is not None:
                over &= entry.group >= remaining
            over &= (entry.group >= 0) | (remaining is None)
            if over.any():
                due.append(entry.of(over))
            if not over.all():
                keep.append(entry.of(~over))
        self.pending = keep
        return due


def _lanes(group: Group, mask: Array | None) -> Array:
    """Flat numbers of the lanes of a group that a guard lets through."""
    return group.ix if mask is None else group.ix.reshape(group.shape)[np.broadcast_to(mask, group.shape)]
