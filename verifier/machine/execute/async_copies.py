"""Asynchronous copies: the bytes arrive when they are waited for, not before."""

# ruff: noqa: PLR0917 - these are called by position, many times a launch

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.execute.lane_groups import Group


@dataclass(kw_only=True)
class Pending:
    """A `cp.async` that has not been waited for."""

    lanes: Array
    site: int
    target: Array
    source: Array
    size: int
    active: Array
    full: Array
    group: int | None = None

    def of(self, some: Array) -> Pending:
        """Give the part of some of its lanes."""
        return replace(
            self,
            lanes=self.lanes[some],
            target=self.target[some],
            source=self.source[some],
            full=self.full[some],
        )

    def step(self) -> int:
        """Bytes that are moved at a time: as many as divide what is copied and what is read of it."""
        return next(n for n in (8, 4, 2, 1) if self.size % n == 0 and not (self.full % n).any())


class AsyncCopies:
    """The copies that one wave has started."""

    def __init__(self) -> None:
        """Begin with none on its way."""
        self.pending: list[Pending] = []

    def start(
        self,
        site: int,
        group: Group,
        target: Array,
        source: Array,
        size: int,
        actual: Array,
        mask: Array | None,
    ) -> None:
        """Remember a `cp.async` of `size` bytes a lane, of which `actual` are read and the rest zero."""
        whole = group.shape
        active = np.ones(whole, dtype=bool) if mask is None else np.broadcast_to(mask, whole)

        def pick(x: Array) -> Array:
            return np.broadcast_to(x, whole)[active]

        self.pending.append(
            Pending(
                lanes=group.ix.reshape(whole)[active],
                site=site,
                target=pick(target).astype(np.uint64),
                source=pick(source),
                size=size,
                active=active,
                full=pick(actual).astype(np.int64),
            )
        )

    def commit(self, group: Group) -> None:
        """Close the open group of copies of these lanes."""
        for entry in self.pending:
            if entry.group is None and np.isin(entry.lanes, group.ix).any():
                entry.group = 0
            elif entry.group is not None and np.isin(entry.lanes, group.ix).any():
                entry.group += 1

    def take(self, group: Group, remaining: int | None) -> list[Pending]:
        """Give what these lanes wait for: all of their copies but those of the last `remaining` groups.

        remaining: None means even those of the open group.
        """
        keep, due = [], []
        for entry in self.pending:
            over = remaining is None or (entry.group is not None and entry.group >= remaining)
            mine = np.isin(entry.lanes, group.ix)
            if not over or not mine.any():
                keep.append(entry)
                continue
            due.append(entry.of(mine))
            if not mine.all():
                keep.append(entry.of(~mine))
        self.pending = keep
        return due
