"""Thread-block clusters: blocks that run at once, wait for each other, and touch each other's shared memory.

A wave holds whole clusters, the blocks of one side by side in the order of their ranks. An address in the
window of shared memory carries, above its offset, the rank to which `mapa` sent it plus one, and 0 where it
is the own block's. The barrier has two halves, `arrive` and `wait`: what a thread does between them comes
neither before what others do behind theirs, nor behind what they did before (PTX ISA, barrier.cluster).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.execute.lane_groups import WARP
from verifier.machine.execute.memory import Fault

if TYPE_CHECKING:
    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.execute.lane_groups import Group

MAX_CLUSTER = 8
"""Blocks that every device with clusters takes (CUDA C++ programming guide, "Thread Block Clusters")."""
RANK_SHIFT = 24
"""Bits of an offset into shared memory, of which a block has less than 2^24 bytes."""
_OFFSET = (1 << RANK_SHIFT) - 1
_WINDOW = (1 << 32) - 1
AT_CLUSTER = -2
"""In the place of a barrier's number: lanes wait for their cluster."""
_NEVER = -1


def mapped(address: Array, rank: Array) -> Array:
    """Give the address of the same place in the shared memory of the block of a rank (`mapa`)."""
    kind = address.dtype.type
    keep = ~kind(_WINDOW & ~_OFFSET)
    named = np.minimum(rank, np.uint32(254)).astype(address.dtype) + kind(1)  # no cluster has so many blocks
    answer: Array = (address & keep) | (named << kind(RANK_SHIFT))
    return answer


def parted(address: Array) -> tuple[Array, Array]:
    """Give offset and rank of addresses; the rank is -1 where none is named."""
    low = (address & address.dtype.type(_WINDOW)).astype(np.uint32)
    return low & np.uint32(_OFFSET), (low >> np.uint32(RANK_SHIFT)).astype(np.int64) - 1


def coordinates(numbers: Array, grid: tuple[int, int, int], cluster: tuple[int, int, int]) -> Array:
    """Turn numbers of n clusters into coordinates of their blocks, by rank: (n * prod(cluster), 3)."""
    found = np.empty((len(numbers), prod(cluster), 3), dtype=np.int64)
    rest, ranks = numbers.astype(np.int64), np.arange(prod(cluster))
    for axis, (extent, blocks) in enumerate(zip(grid, cluster, strict=True)):
        rest, first = np.divmod(rest, extent // blocks)
        ranks, place = np.divmod(ranks, blocks)
        found[:, :, axis] = first[:, None] * blocks + place
    return found.reshape(-1, 3)


class Clusters:
    """The clusters of one wave: who has arrived at their barriers, and who touched another block's memory.

    arrivals, passed: of each lane, how often it has arrived, and how often it has waited. completed: of each
    cluster, how often all of its lanes had arrived. touched: of each block, the largest number of arrivals
    with which another one touched its memory; ended: how often it had waited when its last lane left.
    opened: whether a barrier has been completed since the scheduler looked. loops_wait: whether a loop of the
    kernel waits for what others write, so that barriers alone do not tell who has ended too early.
    """

    def __init__(self, blocks: int, threads: int, size: int) -> None:
        """Begin with nobody at a barrier; size: blocks of a cluster."""
        self.blocks, self.threads, self.size = blocks, threads, size
        self.first = np.arange(blocks) // size * size
        self.loops_wait = False
        self.restart()

    def restart(self) -> None:
        """Stand for as many other blocks."""
        lanes = self.blocks * self.threads
        self.arrivals = np.zeros(lanes, dtype=np.int64)
        self.passed = np.zeros(lanes, dtype=np.int64)
        self.left = np.zeros(lanes, dtype=bool)
        self.aligned_at = np.full(lanes, _NEVER, dtype=np.int64)
        self.completed = np.zeros(self.blocks // self.size, dtype=np.int64)
        self.touched = np.full(self.blocks, _NEVER, dtype=np.int64)
        self.ended = np.full(self.blocks, _NEVER, dtype=np.int64)
        self.opened = False

    def own(self, group: Group, whole: bool) -> Array:
        """Give the block of each lane of a group; of all lanes, as a column."""
        return np.arange(self.blocks)[:, None] if whole else group.ib

    # The barrier.

    def arrive(self, site: int, group: Group, *, aligned: bool) -> list[Array]:
        """Note who arrives; give the lanes of each cluster all of whose lanes have arrived.

        Raises Fault for a lane that has not waited since it last arrived.
        """
        lanes = group.ix
        early = self.arrivals[lanes] > self.passed[lanes]
        if early.any():
            message = "arrives at the barrier of its cluster again, before it has waited there"
            raise Fault("divergent_barrier", site, int(np.flatnonzero(early)[0]), (len(lanes),), message)
        self.arrivals[lanes] += 1
        self.aligned_at[lanes] = site if aligned else _NEVER
        return self.complete(lanes)

    def leave(self, lanes: Array) -> list[Array]:
        """Note who leaves the kernel: no barrier waits for them. Else as `arrive`."""
        self.left[lanes] = True
        gone = self.left.reshape(self.blocks, self.threads).all(axis=1) & (self.ended == _NEVER)
        self.ended[gone] = self.passed.reshape(self.blocks, self.threads).max(axis=1)[gone]
        return self.complete(lanes)

    def complete(self, lanes: Array) -> list[Array]:
        """Open the barriers for which these lanes were the last; give all lanes of their clusters."""
        found, wide = [], self.size * self.threads
        for cluster in np.unique(lanes // wide):
            part = slice(cluster * wide, (cluster + 1) * wide)
            here = self.arrivals[part] > self.completed[cluster]
            if here.any() and (here | self.left[part]).all():
                self.must_be_whole_warps(cluster, part, here)
                self.completed[cluster] += 1
                self.opened = True
                found.append(np.arange(part.start, part.stop))
        return found

    def must_be_whole_warps(self, cluster: int, part: slice, here: Array) -> None:
        """Raise Fault where an aligned half was not executed by all lanes of a warp at one place."""
        sites = np.where(here, self.aligned_at[part], _NEVER).reshape(self.size, self.threads)
        for start in range(0, self.threads, WARP):
            warp = sites[:, start : start + WARP]
            split = (warp != warp[:, :1]).any(axis=1)
            if split.any():
                block = int(np.flatnonzero(split)[0])
                row = warp[block]
                message = "lanes of one warp arrive at the barrier of their cluster at different places"
                raise Fault("divergent_barrier", int(row.max()), 0, (1,), message)

    def ready(self, lanes: Array) -> Array:
        """Whether the barrier at which each lane has last arrived is complete."""
        whole = self.completed[lanes // (self.size * self.threads)]
        answer: Array = (whole >= self.arrivals[lanes]) & (self.arrivals[lanes] > self.passed[lanes])
        return answer

    def go_on(self, lanes: Array) -> None:
        """Note who has waited to the end."""
        self.passed[lanes] = self.arrivals[lanes]

    # Memory of other blocks.

    def targets(self, site: int, group: Group, rank: Array, mask: Array | None, *, whole: bool) -> Array:
        """Give the block of the wave in whose memory each lane's address lies.

        Raises Fault for a rank that its cluster does not have.
        """
        own = self.own(group, whole)
        beyond = rank >= self.size if mask is None else (rank >= self.size) & mask
        if beyond.any():
            shape = np.broadcast_shapes(beyond.shape, group.shape)
            place = int(np.flatnonzero(np.broadcast_to(beyond, shape).reshape(-1))[0])
            number = int(np.broadcast_to(rank, shape).reshape(-1)[place])
            message = f"shared memory of block {number} of its cluster, which has {self.size}"
            raise Fault("out_of_bounds", site, place, shape, message, tensor="shared memory")
        return np.where(rank < 0, own, self.first[own] + np.minimum(rank, self.size - 1))

    def touch(self, lanes: Array, targets: Array) -> tuple[int, str] | None:
        """Note who touches the memory of which other block; the first that may not, and why.

        All blocks of a cluster have to have begun, which a barrier ensures, and none of them ended (CUDA C++
        programming guide, "Distributed Shared Memory").
        """
        lanes, targets = np.broadcast_arrays(lanes, targets)
        lanes, targets = lanes.reshape(-1), targets.reshape(-1)
        others = np.flatnonzero(targets != lanes // self.threads)
        if not others.size:
            return None
        early = others[self.passed[lanes[others]] == 0]
        if early.size:
            return int(early[0]), "which may not have begun: no barrier of the cluster comes before"
        ended = self.ended[targets[others]]
        late = others[(ended != _NEVER) & (ended <= self.arrivals[lanes[others]])]
        if late.size and not self.loops_wait:
            return int(late[0]), "which may have ended: it has not waited for this block"
        np.maximum.at(self.touched, targets[others], self.arrivals[lanes[others]])
        return None

    def deserted(self) -> int | None:
        """Give a block that has ended while another one may still touch its memory, None if there is none."""
        if self.loops_wait:
            return None
        wrong = np.flatnonzero((self.ended != _NEVER) & (self.touched >= self.ended))
        return int(wrong[0]) if wrong.size else None
