"""Asynchronous copies: the bytes arrive when they are waited for, not before."""

# ruff: noqa: PLR0917 - these are called by position, many times a launch

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.groups import Group

if TYPE_CHECKING:
    from verifier.machine.numerics import Array
    from verifier.machine.wave import Wave


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


class Copies:
    """The copies that one wave has started."""

    def __init__(self) -> None:
        """Begin with none on its way."""
        self.pending: list[Pending] = []

    def start(
        self,
        wave: Wave,
        site: int,
        group: Group,
        target: Array,
        source: Array,
        size: int,
        actual: Array,
        mask: Array | None,
    ) -> None:
        """Remember a `cp.async` of `size` bytes a lane, of which `actual` are read and the rest zero."""
        whole = wave.whole(group)
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

    def wait(self, wave: Wave, group: Group, remaining: int | None) -> None:
        """Finish all copies but those of the last `remaining` groups; None means even uncommitted ones."""
        keep = []
        for entry in self.pending:
            due = remaining is None or (entry.group is not None and entry.group >= remaining)
            mine = np.isin(entry.lanes, group.ix)
            if not due or not mine.any():
                keep.append(entry)
                continue
            self.finish(wave, entry, mine)
            if not mine.all():
                rest = ~mine
                keep.append(
                    Pending(
                        lanes=entry.lanes[rest],
                        site=entry.site,
                        target=entry.target[rest],
                        source=entry.source[rest],
                        size=entry.size,
                        active=entry.active,
                        full=entry.full[rest],
                        group=entry.group,
                    )
                )
        self.pending = keep

    def finish(self, wave: Wave, entry: Pending, mine: Array) -> None:
        """Copy the bytes of some lanes of a pending entry."""
        group = Group(entry.lanes[mine], wave.threads)
        step = next(n for n in (8, 4, 2, 1) if entry.size % n == 0 and not (entry.full[mine] % n).any())
        for start in range(0, entry.size, step):
            inside = entry.full[mine] > start
            address = entry.source[mine] + np.uint64(start)
            values = wave.load(entry.site, group, "global", address, f"u{step}", 1, inside)
            moved = wave.slots.load(wave.found, values[0].shape, step, 1) if wave.slots is not None else None
            missing = wave.flags.load(wave.found, values[0].shape, step) if wave.flags is not None else None
            wave.store(
                entry.site, group, "shared", entry.target[mine] + np.uint64(start), f"u{step}", values, None
            )
            if wave.flags is not None and missing is not None:
                wave.flags.save(wave.found, step, missing)
            if wave.slots is not None and moved is not None:
                wave.slots.save(wave.found, step, [list(row) for row in moved])
