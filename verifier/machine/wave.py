"""One wave of blocks while it runs: its memory windows and what emitted code calls."""

# ruff: noqa: PLR0917 - these are called by position, many times a launch

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from verifier.machine import atomics, specials
from verifier.machine.copies import Copies
from verifier.machine.groups import Everyone, Group
from verifier.machine.memory import (
    LOCAL_TAG,
    SHARED_TAG,
    TAG_SHIFT,
    Fault,
    GlobalMemory,
    Located,
    ScatteredError,
    WindowMemory,
)
from verifier.machine.operations.table import DTYPE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verifier.machine.approximation import Approximation
    from verifier.machine.numerics import Array
    from verifier.machine.sanitizers.uninitialised import Flags
    from verifier.machine.slots import Slots

Next = Any  # an int, a list of (target, lanes), or a Wait


@dataclass(frozen=True)
class Wait:
    """Lanes have come to a barrier and go on at `target` when it opens."""

    target: int
    barrier: int
    count: int | None
    aligned: bool
    site: int


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
        """One access of `width` bytes a lane; kind is read, write or atomic."""

    def barrier(self, wave: Wave, lanes: Array) -> None:
        """Note that these lanes have passed a barrier together."""

    def ordering(self, wave: Wave, site: int, lanes: Array, words: tuple[str, ...]) -> None:
        """Note a fence, or the semantics of an atomic about to be performed."""


@dataclass(eq=False)
class Wave:
    """Blocks that run together: `block_ids` (blocks, 3), extents, memory, and the device's model."""

    memory: GlobalMemory
    block_ids: Array
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_size: int
    local_size: int
    parameters: bytes
    model: Approximation
    poison: int | None = None
    monitors: tuple[Monitor, ...] = ()
    multiprocessors: int = 132
    symbols: dict[str, int] = field(default_factory=dict)
    slots: Slots | None = None
    flags: Flags | None = None

    def __post_init__(self) -> None:
        """Allocate the windows."""
        self.blocks = len(self.block_ids)
        self.threads = self.block[0] * self.block[1] * self.block[2]
        self.everyone = Everyone(self.blocks, self.threads)
        self.shared = WindowMemory("shared", self.blocks, self.shared_size, self.poison)
        self.local = WindowMemory("local", self.blocks * self.threads, self.local_size, self.poison)
        self.shared_windows = (np.arange(self.blocks) * self.shared.stride)[:, None]
        self.local_windows = (np.arange(self.blocks * self.threads) * self.local.stride).reshape(
            self.blocks, self.threads
        )
        self.copies = Copies()
        self.found: list[Located] = []
        self.strong: tuple[str, ...] = ()
        self.operand_slots: list[Array] = []
        self.old_slots: list[tuple[Array, Array]] = []
        self.block_numbers: dict[int, Array] = {}
        self.clock = 0
        self.exposed: list[tuple[Array, int]] = []

    def restart(self, block_ids: Array) -> None:
        """Run the same code for other blocks; windows and registers that may be read first are poisoned."""
        self.block_ids = block_ids
        for axis, array in self.block_numbers.items():
            array[:, 0] = block_ids[:, axis]
        for window in (self.shared, self.local):
            window.region.flags = None
            window.region.slots = None
            window.region.octets.fill(0 if self.poison is None else self.poison & 0xFF)
        for array, filler in self.exposed:
            array.fill(filler)
        self.copies.pending = []

    def forget(self) -> None:
        """Let go of everything that belongs to one launch."""
        self.memory, self.monitors, self.found = GlobalMemory(), (), []
        self.operand_slots, self.old_slots = [], []

    # Values that instructions read.

    def special(self, name: str) -> Array:
        """Give a special register, in its own shape."""
        return specials.value(self, name)

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
    ) -> Iterator[Located]:
        """Give the places of an access; more than one only when its lanes go to different regions."""
        if space == "global":
            try:
                found = self.memory.locate(site, address, width, mask)
            except ScatteredError:
                yield from self.scattered(site, address, width, mask)
                return
        elif space == "generic":
            yield from self.generic(site, group, address, width, mask)
            return
        else:
            whole = isinstance(group, Everyone)
            if space == "shared":
                windows = self.shared_windows if whole else self.shared_windows[:, 0][group.ib]
                found = self.shared.locate(site, address, windows, width, mask)
            else:
                windows = self.local_windows if whole else self.local_windows.reshape(-1)[group.ix]
                found = self.local.locate(site, address, windows, width, mask)
        if found is not None:
            yield found

    def scattered(self, site: int, address: Array, width: int, mask: Array | None) -> Iterator[Located]:
        """Do an access region by region."""
        shape = address.shape if mask is None else np.broadcast_shapes(address.shape, mask.shape)
        address = np.broadcast_to(address, shape)
        active = np.ones(shape, dtype=bool) if mask is None else np.broadcast_to(mask, shape)
        tags = address >> np.uint64(TAG_SHIFT)
        for tag in np.unique(tags[active]):
            found = self.memory.locate(site, address, width, active & (tags == tag))
            if found is not None:
                yield found

    def generic(
        self, site: int, group: Group, address: Array, width: int, mask: Array | None
    ) -> Iterator[Located]:
        """Sort generic addresses into the windows and global memory."""
        tags = address >> np.uint64(TAG_SHIFT)
        for space, tag in (("shared", SHARED_TAG), ("local", LOCAL_TAG), ("global", None)):
            chosen = (tags == tag) if tag else (tags != SHARED_TAG) & (tags != LOCAL_TAG)
            if mask is not None:
                chosen = chosen & mask
            if chosen.any():
                yield from self.locate(site, group, space, address, width, chosen)

    def load(
        self, site: int, group: Group, space: str, address: Array, dtype: str, count: int, mask: Array | None
    ) -> list[Array]:
        """Read `count` elements a lane; lanes that are off read 0."""
        width = np.dtype(dtype).itemsize * count
        results: list[Array] | None = None
        if self.monitors:
            address = np.broadcast_to(address, self.whole(group))
        self.found = []
        for found in self.locate(site, group, space, address, width, mask):
            self.found.append(found)
            for monitor in self.monitors:
                monitor.access(
                    self,
                    site,
                    self.announced(monitor, site, group, "read"),
                    self.space_of(found),
                    found,
                    group.lanes_of(found.shape, found.selection),
                    width,
                    None,
                )
            values = found.gather(dtype, count)
            results = (
                values
                if results is None
                else [
                    np.where(np.asarray(found.selection), v, r) for v, r in zip(values, results, strict=True)
                ]
            )
        self.strong = ()
        return results if results is not None else [np.zeros(address.shape, dtype=dtype)] * count

    def whole(self, group: Group) -> tuple[int, ...]:
        """Shape of one value for every lane of a group: sanitizers have to see each lane's access."""
        return (self.blocks, self.threads) if isinstance(group, Everyone) else tuple(group.ix.shape)

    def announced(self, monitor: Monitor, site: int, group: Group, kind: str) -> str:
        """Kind of an access; loads and stores that synchronise count as atomics."""
        if not self.strong:
            return kind
        monitor.ordering(self, site, group.ix, self.strong)
        return "atomic"

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
        shape = np.broadcast_shapes(address.shape, *(np.shape(v) for v in values))
        if self.monitors:
            shape = self.whole(group)
        if shape != address.shape:
            address = np.broadcast_to(address, shape)
        self.found = []
        for found in self.locate(site, group, space, address, np.dtype(dtype).itemsize * len(values), mask):
            self.found.append(found)
            for monitor in self.monitors:
                monitor.access(
                    self,
                    site,
                    self.announced(monitor, site, group, "write"),
                    self.space_of(found),
                    found,
                    group.lanes_of(found.shape, found.selection),
                    np.dtype(dtype).itemsize * len(values),
                    values,
                )
            found.scatter(dtype, values)
        self.strong = ()

    def atomic(
        self,
        site: int,
        group: Group,
        space: str,
        address: Array,
        operation: str,
        kind: str,
        operands: list[list[Array]],
        mask: Array | None,
        words: tuple[str, ...],
        wanted: bool,
    ) -> list[Array]:
        """Do a read-modify-write for every lane in order; `operands`: the values of each vector element."""
        dtype = DTYPE[kind]
        whole = self.whole(group)
        if mask is not None and space == "global" and not self.monitors and self.slots is None:
            few = atomics.sparse(self.memory, site, whole, address, operation, kind, operands, mask, wanted)
            if few is not None:
                return few
        address = np.broadcast_to(address, whole)
        width = np.dtype(dtype).itemsize
        results = [np.zeros(whole, dtype=dtype) for _ in operands]
        self.old_slots = self.no_slots(whole, len(operands))
        flat_lanes = group.lanes_of(whole, None if mask is None else np.broadcast_to(mask, whole)).reshape(-1)
        for monitor in self.monitors:
            monitor.ordering(self, site, flat_lanes, words)
        for found in self.locate(site, group, space, address, width * len(operands), mask):
            for monitor in self.monitors:
                monitor.access(
                    self,
                    site,
                    "atomic",
                    self.space_of(found),
                    found,
                    group.lanes_of(found.shape, found.selection),
                    width * len(operands),
                    None,
                )
            flush = self.space_of(found) == "global"
            for number, values in enumerate(operands):
                index = (found.offsets // width + number).reshape(-1)
                active = [
                    np.ascontiguousarray(
                        np.broadcast_to(v, whole)
                        if found.selection is None
                        else np.broadcast_to(v, whole)[found.selection]
                    ).reshape(-1)
                    for v in values
                ]
                observe = None
                if self.slots is not None:
                    observe, before = self.slots.atomic(
                        found, operation, kind, number, width, self.operand_slots[number], active
                    )
                old = atomics.apply(
                    found.region.view(dtype),
                    index,
                    operation,
                    kind,
                    active,
                    wanted=wanted,
                    flush=flush,
                    observe=observe,
                )
                if observe is not None:
                    chosen = np.ones(whole, dtype=bool) if found.selection is None else found.selection
                    self.old_slots[number][0][chosen], self.old_slots[number][1][chosen] = before
                if old is not None:
                    if found.selection is None:
                        results[number] = old.reshape(whole)
                    else:
                        results[number][found.selection] = old
        return results

    def no_slots(self, shape: tuple[int, ...], count: int) -> list[tuple[Array, Array]]:
        """Give empty places for the slots of old values."""
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
        shape = (self.blocks, self.threads) if isinstance(group, Everyone) else group.ix.shape
        place = 0 if mask is None else int(np.flatnonzero(np.broadcast_to(mask, shape).reshape(-1))[0])
        raise Fault("device_assertion", site, place, shape, message)
