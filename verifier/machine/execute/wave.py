"""One wave of blocks while it runs: its memory windows and what emitted code calls."""

# ruff: noqa: PLR0917 - these are called by position, many times a launch

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from verifier.machine.execute import atomics, special_registers
from verifier.machine.execute.async_copies import AsyncCopies, Pending
from verifier.machine.execute.clusters import Clusters, parted
from verifier.machine.execute.companions import Companions
from verifier.machine.execute.lane_groups import Everyone, Group
from verifier.machine.execute.memory import (
    LOCAL_WINDOW,
    REGION_SHIFT,
    SHARED_WINDOW,
    WIDTH,
    Fault,
    GlobalMemory,
    Located,
    ScatteredError,
    WindowMemory,
    spread,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from verifier.machine.arithmetic.approximation import Approximation
    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.execute.atomics import Atomic
    from verifier.machine.execute.extents import GridExtents
    from verifier.machine.sanitizers.uninitialised import Flags
    from verifier.machine.shadow.slots import Slots


@dataclass(frozen=True)
class Wait:
    """Lanes have come to a barrier and go on at `target` when it opens."""

    target: int
    barrier: int
    count: int | None
    aligned: bool
    site: int


Next: TypeAlias = "int | Wait | list[tuple[int, Array]]"
"""Where lanes go after a block: all to one, to a barrier, or some here and some there."""


class Monitor(Protocol):
    """Sees every access; sanitizers are monitors."""

    def access(
        self,
        wave: Wave,
        site: int,
        kind: str,
        space: str,
        located: Located,
        lanes: Array,
        width: int,
        values: list[Array] | None,
    ) -> None:
        """One access of `width` bytes a lane; kind: "read", "write", "atomic".

        Also "cached read", by a cache that does not see what the kernel
        writes (`ld.global.nc`), and "strong read" and "strong write", of which two are no data race
        (`.volatile`, `.relaxed` and stronger ones).
        """

    def barrier(self, wave: Wave, lanes: Array) -> None:
        """Note that these lanes have passed a barrier together: whole blocks, or some warps of one."""

    def barrier_of_cluster(self, wave: Wave, lanes: Array) -> None:
        """Note that these lanes, all of one cluster, have arrived at its barrier."""

    def barrier_object(self, wave: Wave, site: int) -> None:
        """Note that an instruction does something at a barrier in shared memory (`mbarrier`, `st.async`)."""

    def ordering(self, wave: Wave, site: int, lanes: Array, words: tuple[str, ...]) -> None:
        """Note a fence, or the semantics of an atomic about to be performed."""


@dataclass(eq=False)
class Wave:
    """Blocks that run together: their extents, memory, and the device's model; gaps: see `Frame`."""

    extents: GridExtents
    memory: GlobalMemory
    local_size: int
    parameters: bytes
    model: Approximation
    poison: int | None = None
    monitors: tuple[Monitor, ...] = ()
    symbols: dict[str, int] = field(default_factory=dict)
    gaps: tuple[tuple[int, int, str], ...] = ()
    slots: Slots | None = None
    flags: Flags | None = None

    def __post_init__(self) -> None:
        """Allocate the windows."""
        self.blocks, self.threads = self.extents.blocks, self.extents.threads
        self.everyone = Everyone(self.blocks, self.threads)
        self.shared = WindowMemory("shared", self.blocks, self.extents.shared_size, self.poison)
        self.local = WindowMemory("local", self.blocks * self.threads, self.local_size, self.poison)
        self.shared_windows = (np.arange(self.blocks) * self.shared.stride)[:, None]
        self.local_windows = (np.arange(self.blocks * self.threads) * self.local.stride).reshape(
            self.blocks, self.threads
        )
        self.async_copies = AsyncCopies()
        self.companions = Companions(self.blocks, self.threads)
        self.barriers: set[int] = set()
        self.clusters: Clusters | None = None
        if self.extents.cluster is not None:
            self.clusters = Clusters(self.blocks, self.threads, prod(self.extents.cluster))
        self.found: list[Located] = []
        self.strong: tuple[str, ...] = ()
        self.cached = False
        self.operand_shadows: list[Array] = []
        self.old_shadows: list[tuple[Array, Array]] = []
        self.clock = 0

    def restart(self, block_ids: Array) -> None:
        """Run the same code for other blocks; windows and registers that may be read first are poisoned."""
        self.extents.restart(block_ids)
        for window in (self.shared, self.local):
            window.region.flags = None
            window.region.store = None
            window.region.octets.fill(0 if self.poison is None else self.poison & 0xFF)
        self.async_copies.clear()
        self.companions = Companions(self.blocks, self.threads)
        self.barriers.clear()
        if self.clusters is not None:
            self.clusters.restart()

    def forget(self) -> None:
        """Let go of everything that belongs to one launch."""
        self.memory, self.monitors, self.found = GlobalMemory(), (), []
        self.operand_shadows, self.old_shadows = [], []

    # Values that instructions read.

    def special(self, name: str) -> Array:
        """Give a special register, in its own shape."""
        return special_registers.value(self.extents, name)

    def tick(self, dtype: str) -> Array:
        """Give a clock that only ever moves forward."""
        self.clock += 1
        return np.full((1, 1), self.clock, dtype=dtype)

    def parameter(self, offset: int, dtype: str) -> Array:
        """Give a kernel parameter as a (1, 1) array."""
        width = np.dtype(dtype).itemsize
        return np.frombuffer(
            bytearray(self.parameters[offset : offset + width].ljust(width, b"\0")), dtype=dtype
        ).reshape(1, 1)

    def symbol(self, name: str, offset: int, dtype: str) -> Array:
        """Address of a variable as a 0-dimensional array."""
        return np.array(
            (self.symbols[name] + offset) & ((1 << 8 * np.dtype(dtype).itemsize) - 1), dtype=dtype
        )

    # Memory.

    def locate(
        self, site: int, group: Group, space: str, address: Array, width: int, mask: Array | None
    ) -> Iterable[Located]:
        """Give the places of an access; more than one only when its lanes go to different regions."""
        if space == "global":
            try:
                found = self.memory.locate(site, address, width, mask)
            except ScatteredError:
                return self.scattered(site, address, width, mask)
        elif space == "generic":
            return self.generic(site, group, address, width, mask)
        elif space == "cluster":
            found = self.across(site, group, address, width, mask)
        else:
            whole = isinstance(group, Everyone)
            if space == "shared":
                windows = self.shared_windows if whole else self.shared_windows[:, 0][group.ib]
                found = self.shared.locate(site, address, windows, width, mask)
            else:
                windows = self.local_windows if whole else self.local_windows.reshape(-1)[group.ix]
                found = self.local.locate(site, address, windows, width, mask)
        return () if found is None else (found,)

    def scattered(self, site: int, address: Array, width: int, mask: Array | None) -> Iterator[Located]:
        """Do an access region by region."""
        shape = address.shape if mask is None else np.broadcast_shapes(address.shape, mask.shape)
        address = np.broadcast_to(address, shape)
        active = np.ones(shape, dtype=bool) if mask is None else np.broadcast_to(mask, shape)
        regions = address >> np.uint64(REGION_SHIFT)
        for number in np.unique(regions[active]):
            found = self.memory.locate(site, address, width, active & (regions == number))
            if found is not None:
                yield found

    def generic(
        self, site: int, group: Group, address: Array, width: int, mask: Array | None
    ) -> Iterator[Located]:
        """Sort generic addresses into the windows and global memory."""
        regions = address >> np.uint64(REGION_SHIFT)
        for space, window in (("shared", SHARED_WINDOW), ("local", LOCAL_WINDOW), ("global", None)):
            chosen = (regions == window) if window else (regions != SHARED_WINDOW) & (regions != LOCAL_WINDOW)
            if mask is not None:
                chosen = chosen & mask
            if chosen.any():
                within = "cluster" if space == "shared" and self.clusters is not None else space
                yield from self.locate(site, group, within, address, width, chosen)

    def across(
        self, site: int, group: Group, address: Array, width: int, mask: Array | None
    ) -> Located | None:
        """Give the places of an access to the shared memory of the blocks of a cluster."""
        assert self.clusters is not None
        offsets, rank = parted(address)
        whole = isinstance(group, Everyone)
        targets = self.clusters.targets(site, group, rank, mask, whole=whole)
        found = self.shared.locate(site, offsets, targets * self.shared.stride, width, mask)
        if found is not None:
            lanes, shape = group.lanes_of(found.shape, found.selection), found.shape
            targets = spread(targets, shape)
            if found.selection is not None:
                targets = targets[found.selection]
            wrong = self.clusters.touch(lanes, targets)
            if wrong is not None:
                place, why = wrong
                message = f"touches the shared memory of another block, {why}"
                raise Fault("shared_race", site, found.lane(place), shape, message, tensor="shared memory")
        return found

    def load(
        self, site: int, group: Group, space: str, address: Array, dtype: str, count: int, mask: Array | None
    ) -> list[Array]:
        """Read `count` elements a lane; lanes that are off read 0."""
        width = WIDTH[dtype] * count
        results: list[Array] | None = None
        if self.monitors:
            address = np.broadcast_to(address, group.shape)  # they have to see each lane's access
        self.found = []
        for found in self.locate(site, group, space, address, width, mask):
            self.found.append(found)
            if self.monitors:
                self.announce(site, group, "read", found, width, None)
            values = found.gather(dtype, count)
            results = (
                values
                if results is None
                else [
                    np.where(np.asarray(found.selection), v, r) for v, r in zip(values, results, strict=True)
                ]
            )
        self.strong, self.cached = (), False
        return results if results is not None else [np.zeros(address.shape, dtype=dtype)] * count

    def announce(
        self, site: int, group: Group, kind: str, found: Located, width: int, values: list[Array] | None
    ) -> None:
        """Tell the monitors of an access."""
        space, lanes = self.space_of(found), group.lanes_of(found.shape, found.selection)
        kind = f"strong {kind}" if self.strong else f"cached {kind}" if self.cached else kind
        for monitor in self.monitors:
            if self.strong:
                monitor.ordering(self, site, group.ix, self.strong)
            monitor.access(self, site, kind, space, found, lanes, width, values)

    def space_of(self, found: Located) -> str:
        """Name the space of a located access."""
        if found.region is self.shared.region:
            return "shared"
        return "local" if found.region is self.local.region else "global"

    def store(
        self,
        site: int,
        group: Group,
        space: str,
        address: Array,
        dtype: str,
        values: list[Array],
        mask: Array | None,
    ) -> None:
        """Write consecutive elements for each lane."""
        if self.monitors:
            shape = group.shape
        elif all(value.shape == address.shape for value in values):
            shape = address.shape
        else:
            shape = np.broadcast_shapes(address.shape, *(value.shape for value in values))
        if shape != address.shape:
            address = np.broadcast_to(address, shape)
        width = WIDTH[dtype] * len(values)
        self.found = []
        for found in self.locate(site, group, space, address, width, mask):
            self.found.append(found)
            if self.monitors:
                self.announce(site, group, "write", found, width, values)
            found.scatter(dtype, values)
        self.strong = ()

    def atomic(
        self,
        site: int,
        group: Group,
        space: str,
        address: Array,
        what: Atomic,
        operands: list[list[Array]],
        mask: Array | None,
    ) -> list[Array]:
        """Do a read-modify-write for every lane in order; `operands`: the values of each vector element."""
        whole = group.shape
        if mask is not None and space == "global" and not self.monitors and self.slots is None:
            few = atomics.sparse(self.memory, site, whole, address, what, operands, mask)
            if few is not None:
                return few
        results = [np.zeros(whole, dtype=what.dtype) for _ in operands]
        self.old_shadows = self.empty_shadows(whole, len(operands))
        lanes = group.lanes_of(whole, None if mask is None else np.broadcast_to(mask, whole)).reshape(-1)
        for monitor in self.monitors:
            monitor.ordering(self, site, lanes, what.words)
        width = what.width * len(operands)
        for found in self.locate(site, group, space, np.broadcast_to(address, whole), width, mask):
            self.announce(site, group, "atomic", found, width, None)
            for number, values in enumerate(operands):
                old = self.atomic_element(found, what, number, [np.broadcast_to(v, whole) for v in values])
                if old is None:
                    continue
                if found.selection is None:
                    results[number] = old.reshape(whole)
                else:
                    results[number][found.selection] = old
        return results

    def atomic_element(self, found: Located, what: Atomic, number: int, values: list[Array]) -> Array | None:
        """Do an atomic on one element of each lane's vector; the old values of the active lanes if wanted."""
        chosen = found.selection
        active = [np.ascontiguousarray(v if chosen is None else v[chosen]).reshape(-1) for v in values]
        observe = None
        if self.slots is not None:
            observe, before = self.slots.atomic(found, what, number, self.operand_shadows[number], active)
        old = atomics.apply(
            found.region.view(what.dtype),
            (found.offsets // what.width + number).reshape(-1),
            what,
            active,
            flush=self.space_of(found) == "global",
            observe=observe,
        )
        if observe is not None:
            everywhere = np.ones(values[0].shape, dtype=bool) if chosen is None else chosen
            shadows, tags = self.old_shadows[number]
            shadows[everywhere], tags[everywhere] = before
        return old

    def start_copy(
        self,
        site: int,
        group: Group,
        target: Array,
        source: Array,
        size: int,
        actual: Array,
        mask: Array | None,
    ) -> None:
        """Start a `cp.async`, which may read and write at once: monitors see it twice, at its end again."""
        copy = self.async_copies.start(site, group, target, source, size, actual, mask)
        if self.monitors:
            self.look_ahead(copy)

    def look_ahead(self, copy: Pending) -> None:
        """Announce what a copy reads and writes, and write nothing; note that it is on its way."""
        for group, step, target, values, _ in self.pieces_of(copy):
            for found in self.locate(copy.site, group, "shared", target, step, None):
                self.announce(copy.site, group, "write", found, step, values)
            self.note_copy(copy, group, step, target, 1)

    def note_copy(self, copy: Pending, group: Group, step: int, target: Array, change: int) -> None:
        """Note that a piece of a copy, which was just read, is on its way (1) or arrives (-1)."""
        for found in self.found:
            self.async_copies.reads.note(found, step, change)
        for found in self.locate(copy.site, group, "shared", target, step, None):
            self.async_copies.writes.note(found, step, change)

    def pieces_of(self, copy: Pending) -> Iterator[tuple[Group, int, Array, list[Array], Array]]:
        """Load what a copy reads, piece by piece: lanes, bytes, where it goes, and which lanes read any."""
        group, step = Group(copy.lanes, self.threads), copy.step()
        for start in range(0, copy.size, step):
            inside, place = copy.full > start, np.uint64(start)
            values = self.load(copy.site, group, "global", copy.source + place, f"u{step}", 1, inside)
            yield group, step, copy.target + place, values, inside

    def wait_for_copies(self, group: Group, remaining: int | None, mask: Array | None) -> None:
        """Let asynchronous copies of these lanes arrive, but those of the last `remaining` groups."""
        for copy in self.async_copies.take(group, remaining, mask):
            self.finish_copy(copy)

    def finish_copy(self, copy: Pending) -> None:
        """Copy the bytes of a `cp.async`, with their shadows and flags."""
        for group, step, target, values, inside in self.pieces_of(copy):
            moved = self.slots.load(self.found, values[0].shape, step, 1) if self.slots is not None else None
            missing = self.flags.load(self.found, values[0].shape, step) if self.flags is not None else None
            if self.monitors:
                self.note_copy(copy, group, step, target, -1)
            self.store(copy.site, group, "shared", target, f"u{step}", values, None)
            if self.flags is not None and missing is not None:
                self.flags.save(self.found, step, missing)
            if self.slots is not None and moved is not None:
                self.slots.save(self.found, step, self.slots.zeros_beyond(moved, inside))

    def empty_shadows(self, shape: tuple[int, ...], count: int) -> list[tuple[Array, Array]]:
        """Give empty places for the shadows of old values."""
        if self.slots is None:
            return []
        dtype = self.slots.arithmetic.dtype
        return [(np.zeros(shape, dtype=dtype), np.zeros(shape, dtype=np.uint64)) for _ in range(count)]

    # Control flow.

    def branch(self, group: Group, taken: Array, target: int, following: int) -> Next:
        """Send lanes to two places; a plain number when all agree."""
        count = int(np.count_nonzero(taken))
        if count == taken.size:
            return target
        if count == 0:
            return following
        if isinstance(group, Everyone):
            taken = np.broadcast_to(taken, (group.blocks, group.threads)).reshape(-1)
        return [(target, group.ix[taken]), (following, group.ix[~taken])]

    def passed(self, group: Group) -> None:
        """Tell the monitors that every lane passed a barrier together."""
        for monitor in self.monitors:
            monitor.barrier(self, group.ix)

    def arrive_at_cluster(self, site: int, group: Group, aligned: bool) -> None:
        """Note who arrives at the barrier of its cluster, and tell the monitors of complete ones."""
        assert self.clusters is not None
        self.met_in_clusters(self.clusters.arrive(site, group, aligned=aligned))

    def met_in_clusters(self, met: list[Array]) -> None:
        """Tell the monitors of the lanes of whole clusters that have arrived."""
        for lanes in met:
            for monitor in self.monitors:
                monitor.barrier_of_cluster(self, lanes)

    def wait_for_cluster(self, group: Group, wait: Wait) -> Next:
        """Go on where all of these lanes may, else have them held."""
        assert self.clusters is not None
        if not self.clusters.ready(group.ix).all():
            return wait
        self.clusters.go_on(group.ix)
        return wait.target

    def fence(self, site: int, group: Group, words: tuple[str, ...]) -> None:
        """Tell the monitors of a memory fence."""
        for monitor in self.monitors:
            monitor.ordering(self, site, group.ix, words)

    def lacks(self, lacking: Exception, mask: Array | None) -> None:
        """Stop at an instruction that the machine lacks, if any lane executes it."""
        if mask is None or mask.any():
            raise lacking.with_traceback(None)

    def fail(self, site: int, group: Group, message: str, mask: Array | None) -> None:
        """Stop at `trap` or a failed device assertion, if any lane executes it."""
        if mask is not None and not mask.any():
            return
        shape = group.shape
        place = 0 if mask is None else int(np.flatnonzero(np.broadcast_to(mask, shape).reshape(-1))[0])
        raise Fault("device_assertion", site, place, shape, message)
