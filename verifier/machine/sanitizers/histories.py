"""What is remembered where races are looked for: who touched each byte, and what each warp knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.sanitizers.parted_lanes import PartedLanes

if TYPE_CHECKING:
    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.execute.memory import Located

NOBODY, SEVERAL = -1, -2
Knowledge = dict[int, int]
"""What a warp knows of others: warp -> last epoch of that warp whose accesses come before."""


def join(into: Knowledge, other: Knowledge) -> None:
    """Add what another one knows."""
    for warp, epoch in other.items():
        if into.get(warp, -1) < epoch:
            into[warp] = epoch


@dataclass(kw_only=True)
class ByteHistory:
    """Per byte of a tensor: last writer and the last two readers, with their epochs and instructions.

    readers: the warps of a block, a bit each, that read it by the last reader's instruction in its epoch.
    read_block, read_arrival: in shared memory of clusters the block that read it, or SEVERAL, since it had
    arrived so often at the barrier of its cluster.
    """

    writer: Array
    write_epoch: Array
    atomic: Array
    reader: Array
    read_epoch: Array
    read_site: Array
    second: Array
    second_epoch: Array
    second_site: Array
    readers: Array
    parted: PartedLanes
    read_block: Array
    read_arrival: Array

    @classmethod
    def empty(cls, size: int, *, watched_lanes: bool, in_clusters: bool) -> ByteHistory:
        """Begin with bytes that nobody has touched.

        watched_lanes: those of one warp are told apart, too. in_clusters: the blocks that read are kept.
        """
        nobody, never = (np.full(size, number, dtype=np.int64) for number in (NOBODY, -1))
        nowhere = np.full(size, -1, dtype=np.int32)
        return cls(
            writer=nobody,
            write_epoch=never,
            atomic=np.zeros(size, dtype=bool),
            reader=nobody.copy(),
            read_epoch=never.copy(),
            read_site=nowhere,
            second=nobody.copy(),
            second_epoch=never.copy(),
            second_site=nowhere.copy(),
            readers=np.zeros(size, dtype=np.uint32),
            parted=PartedLanes(size if watched_lanes else 0),
            read_block=np.full(size if in_clusters else 0, NOBODY, dtype=np.int64),
            read_arrival=np.full(size if in_clusters else 0, -1, dtype=np.int64),
        )


@dataclass(kw_only=True)
class WarpKnowledge:
    """What one warp knows, may come to know by a fence, and publishes with relaxed atomics.

    seen_in_order, fenced_in_order: the part that rests on fences of sequential consistency alone, its own
    or those of its block's other warps before a barrier.
    """

    known: Knowledge = field(default_factory=dict)
    seen: Knowledge = field(default_factory=dict)
    fenced: Knowledge | None = None
    seen_in_order: Knowledge = field(default_factory=dict)
    fenced_in_order: Knowledge = field(default_factory=dict)

    @property
    def passed_on(self) -> tuple[Knowledge, Knowledge, Knowledge]:
        """What a barrier tells the other warps of the block."""
        return self.known, self.seen_in_order, self.fenced_in_order


def same_as_before(located: Located, values: list[Array] | None, width: int) -> Array | None:
    """Lanes that store what is there already: a benign race that no output can show."""
    if values is None:
        return None
    each = width // len(values)
    view, index = located.region.view(f"u{each}"), located.offsets.reshape(-1) // each
    same = np.ones(index.shape, dtype=bool)
    for number, value in enumerate(values):
        stored = np.broadcast_to(located.active(value), located.offsets.shape).reshape(-1)
        same &= view[index + number] == stored
    return same
