"""Races in global memory: two threads touch a byte, one writes, and nothing orders them.

Order comes from barriers inside a block, and across blocks from a release followed by an acquire at the
same address. A release publishes what its own warp did, and what its block did before the last barrier;
an acquire is known to its own warp at once, and to the block after the next barrier.

Two fences of sequential consistency, which `__threadfence()` makes, need not stand in the threads of the
atomics between them: where a barrier orders a fence of the one block before its atomic, and the other block's
atomic, which saw that one, before its fence, the fences have no other order (PTX ISA, Fence-SC and causality:
a read may not see a write that it precedes). So the last block of a reduction may read what all have written.

AsyncCopies: where a compiler has more threads than elements (Triton), several warps load one element by one
instruction, and the warp that owns the element may store to it while the others, whose copies nobody uses,
are late. A store to bytes which the storing warp itself has loaded by the same instruction as the late
warp, in the same epoch of their block, is therefore no race in such code, if the late warp stores nothing
that follows from its copy (`late_copies`). It is one in CUDA C++, where every thread stands for itself.
"""

# ruff: noqa: PLR0917 - these are called by position, many times a launch

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from verifier.machine.execute.findings import UnsupportedFeature
from verifier.machine.execute.lane_groups import WARP
from verifier.machine.execute.memory import Fault
from verifier.machine.sanitizers.access_kinds import kind_in_races
from verifier.machine.sanitizers.histories import (
    NOBODY,
    SEVERAL,
    ByteHistory,
    Knowledge,
    WarpKnowledge,
    join,
    same_as_before,
)
from verifier.machine.sanitizers.late_copies import LateCopies
from verifier.machine.sanitizers.parted_lanes import PARTED

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.execute.memory import Located
    from verifier.machine.execute.wave import Wave
    from verifier.machine.model import Machine
    from verifier.machine.ptx.syntax import Instruction

_WARPS = 64  # warp numbers a block may use; a block has at most 32
_LARGEST = 1 << 26  # bytes of a tensor up to which it is watched

SANITIZES = frozenset({"global_races", "equal_stores"})


class GlobalRaces:
    """Happens-before over warps, by barriers, fences and atomics."""

    every_lane = True

    def __init__(self, *, replicated: bool, equal_stores: bool = False, space: str = "global") -> None:
        """Start with an empty history; it spans all waves of a launch, since all blocks may run at once.

        replicated: threads may be copies of each other, as the compiler lays out elements. equal_stores:
        report stores of the value that is there already, too: on other inputs it may be another; and strong
        accesses, which are no data race, but one may come first; and refuse what is too large to be watched.
        space: "shared" for the memory that blocks of a cluster share.
        """
        self.space = space
        self.windows: WeakKeyDictionary[Wave, tuple[Array, ByteHistory]] = WeakKeyDictionary()
        self.replicated, self.equal_stores = replicated, equal_stores
        self.bytes: dict[int, ByteHistory] = {}
        self.warps: dict[int, WarpKnowledge] = {}
        self.epochs: dict[int, int] = {}
        self.published: dict[tuple[int, int], Knowledge] = {}
        self.published_in_order: dict[tuple[int, int], Knowledge] = {}
        self.met: dict[int, set[int]] = {}
        self.copies = LateCopies()
        self.pending: tuple[str, ...] = ()
        self.between: set[int] = set()
        self.written: set[int] = set()

    def block_key(self, wave: Wave, block: int) -> int:
        """Linear number of a block in the grid."""
        x, y, z = (int(n) for n in wave.extents.block_ids[block])
        return x + wave.extents.grid[0] * (y + wave.extents.grid[1] * z)

    def warp_keys(self, wave: Wave, lanes: Array) -> tuple[Array, Array]:
        """Warp key and epoch of each lane."""
        columns, rows, _ = wave.extents.grid
        numbers = wave.extents.block_ids @ np.array([1, columns, columns * rows])
        blocks = numbers[lanes // wave.threads]
        unique, inverse = np.unique(blocks, return_inverse=True)
        epochs = np.array([self.epochs.get(int(b), 0) for b in unique], dtype=np.int64)
        return blocks * _WARPS + lanes % wave.threads // WARP, epochs[inverse]

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
        """Compare with the last accesses that are not known to come before."""
        lanes = np.broadcast_to(lanes, located.offsets.shape).reshape(-1)
        warp, epoch = self.warp_keys(wave, lanes)
        if self.replicated and not kind.endswith("read"):
            self.must_not_follow_from_late_copies(site, located, warp)
        if space not in {"global", self.space} or (space == "global" and self.is_too_large(located)):
            return
        if wave.clusters is not None and space == self.space:
            self.must_not_be_between(wave, kind, located, lanes)
        # Where strong accesses race, what one of them sees of the other is a matter of time.
        alone = kind.startswith("strong ") and self.equal_stores
        if kind == "atomic" or (kind.startswith("strong ") and not alone):
            self.synchronise(located, lanes, warp, epoch)
        if space != self.space:
            return
        cells = located.offsets.reshape(-1)
        state = self.cells_of(wave, located)
        if kind == "cached read" and (late := np.flatnonzero(state.writer[cells] != NOBODY)).size:
            self.report_cached(site, int(late[0]), located, int(state.writer[cells[late[0]]]))
        kind = kind_in_races(kind, ordered_alone=self.equal_stores)
        if kind != "read" and (met := wave.async_copies.reads.met(located, width)).size:
            message = f"writes what an asynchronous copy on its way reads of {located.region.name}"
            raise Fault(
                "global_race", site, located.lane(int(met[0])), located.shape, message,
                tensor=located.region.name,
            )  # fmt: skip
        harmless = same_as_before(located, values, width) if kind == "write" else None
        if kind == "write":
            self.no_longer_fenced(set(zip(warp.tolist(), epoch.tolist(), strict=True)))
            self.same_instruction(site, located, values, width, warp)
        paired = self.space == "global" and width % 2 == 0 and located.region.base % 2 == 0
        for byte in range(0, width, 2 if paired else 1):
            self.compare(site, kind, located, cells + byte, warp, epoch, state, harmless)
            self.must_have_met(wave, site, kind, located, lanes, warp, cells + byte)
            if self.space == "shared":
                self.must_be_read_by_one_block(wave, kind, state, cells + byte, lanes)
        if alone:
            self.synchronise(located, lanes, warp, epoch)

    def must_not_be_between(self, wave: Wave, kind: str, located: Located, lanes: Array) -> None:
        """Refuse what is touched between the halves of a cluster's barrier, and written at any time.

        Raises UnsupportedFeature; the order of such accesses is not followed.
        """
        clusters, number = wave.clusters, located.region.number
        assert clusters is not None
        if (clusters.arrivals[lanes] > clusters.passed[lanes]).any():
            self.between.add(number)
        if not kind.endswith("read"):
            self.written.add(number)
        if number in self.between and number in self.written:
            what = "touched between a cluster's arrival and its wait, and written"
            raise UnsupportedFeature(f"a watch for races in {located.region.name}, {what}")

    def must_be_read_by_one_block(
        self, wave: Wave, kind: str, state: ByteHistory, cells: Array, lanes: Array
    ) -> None:
        """Note which block reads; refuse a write where several have read since their cluster met.

        Raises UnsupportedFeature: of the readers the last two are known, which may all be of one block.
        """
        clusters = wave.clusters
        assert clusters is not None
        if kind == "read":
            block, arrived = lanes // wave.threads, clusters.arrivals[lanes]
            fresh = state.read_arrival[cells] < arrived
            alone = fresh | (state.read_block[cells] == block)
            state.read_block[cells] = np.where(alone, block, SEVERAL)
            # Lanes of several blocks that read one cell in one instruction: the last one won above.
            state.read_block[cells[state.read_block[cells] != block]] = SEVERAL
            np.maximum.at(state.read_arrival, cells, arrived)
        elif (
            (state.read_block[cells] == SEVERAL) & (state.read_arrival[cells] >= clusters.passed[lanes])
        ).any():
            raise UnsupportedFeature("a watch for races in what several blocks of a cluster have read")

    def barrier_object(self, wave: Wave, site: int) -> None:
        """Refuse what is ordered by barriers in shared memory: their phases are not followed."""
        raise UnsupportedFeature("a watch for races beside barriers in shared memory (mbarrier)")

    def no_longer_fenced(self, warps: set[tuple[int, int]]) -> None:
        """Take back of an epoch that it was fenced for the block: something is stored behind the fence."""
        for warp, epoch in warps:
            mine = self.warps.get(warp)
            if mine is not None and mine.fenced_in_order.get(warp) == epoch:
                mine.fenced_in_order[warp] = epoch - 1

    def begin(self, sites: Sequence[Instruction]) -> None:
        """Take the instructions of the kernel."""
        self.copies.sites = sites

    def is_too_large(self, located: Located) -> bool:
        """Whether a tensor is not watched.

        Raises UnsupportedFeature where nothing may be passed over.
        """
        if located.region.size <= _LARGEST:
            return False
        if self.equal_stores:
            raise UnsupportedFeature(f"a watch for races in {located.region.name}, of more than 64 MiB")
        return True

    def must_not_follow_from_late_copies(self, site: int, located: Located, warp: Array) -> None:
        """Report a warp that stores what follows from a copy that it may have read too late."""
        late = self.copies.stores(site, np.unique(warp).tolist())
        if late is not None:
            lane = located.lane(int(np.flatnonzero(warp == late)[0]))
            message = "stores what follows from a number that another warp may have overwritten before"
            raise Fault("global_race", site, lane, located.shape, message, tensor=located.region.name)

    def must_have_met(
        self, wave: Wave, site: int, kind: str, located: Located, lanes: Array, warp: Array, cells: Array
    ) -> None:
        """Report a lane that touches what another one of its warp may touch before or after."""
        if not self.equal_stores:
            return
        place = self.cells_of(wave, located).parted.access(kind, cells, warp, lanes, wave.companions)
        if place is not None:
            message = f"touches byte {int(cells[place])} of {located.region.name}, which {PARTED}"
            lane = located.lane(place)
            raise Fault("global_race", site, lane, located.shape, message, tensor=located.region.name)

    def same_instruction(
        self, site: int, located: Located, values: list[Array] | None, width: int, warp: Array
    ) -> None:
        """Report warps that store different values to one place in one instruction; of copies, blocks."""
        cells = located.offsets.reshape(-1)
        order = np.argsort(cells, kind="stable")
        same = cells[order][1:] == cells[order][:-1]
        if values is None or not same.any():
            return
        who = (warp // _WARPS if self.replicated else warp)[order]
        unequal = np.zeros(len(same), dtype=bool)
        for value in values:
            stored = np.broadcast_to(located.active(value), located.offsets.shape).reshape(-1)[order]
            unequal |= stored[1:] != stored[:-1]
        for place in np.flatnonzero(same & unequal & (who[1:] != who[:-1])):
            self.report(site, int(order[place + 1]), located, int(warp[order[place]]), "written", "write")

    def cells_of(self, wave: Wave, located: Located) -> ByteHistory:
        """History of a tensor, or of the shared memory of a wave until it runs other blocks."""
        shared = self.space == "shared"
        state = self.bytes.get(located.region.number)
        if shared:
            ids, state = self.windows.get(wave, (None, None))
            state = state if ids is wave.extents.block_ids else None
        if state is None:
            size = located.region.size
            state = ByteHistory.empty(size, watched_lanes=self.equal_stores, in_clusters=shared)
            if shared:
                self.windows[wave] = wave.extents.block_ids, state
            else:
                self.bytes[located.region.number] = state
        return state

    def compare(
        self,
        site: int,
        kind: str,
        located: Located,
        cells: Array,
        warp: Array,
        epoch: Array,
        state: ByteHistory,
        harmless: Array | None,
    ) -> None:
        """Look for an earlier access by a warp of which this one knows nothing."""
        suspects = [(state.writer[cells], state.write_epoch[cells], "written")]
        if kind != "read":
            suspects.append((state.reader[cells], state.read_epoch[cells], "read"))
            suspects.append((state.second[cells], state.second_epoch[cells], "read"))
        for other, when, word in suspects:
            strange = (other != NOBODY) & (other != warp)
            if harmless is not None and not self.equal_stores:
                strange &= ~harmless
            if kind == "atomic" and word == "written":
                strange &= ~state.atomic[cells]
            if kind == "write" and word == "read" and self.replicated:
                copies = strange & self.copied(state, cells, warp)
                self.must_not_be_used(
                    site,
                    located,
                    np.flatnonzero(copies & (when >= epoch)),
                    warp,
                    cells,
                    state,
                )
                strange &= ~copies
            for place in np.flatnonzero(strange):
                if not self.ordered(int(other[place]), int(when[place]), int(warp[place]), int(epoch[place])):
                    self.report(site, int(place), located, int(other[place]), word, kind)
        self.record(site, kind, cells, warp, epoch, state)

    def copied(self, state: ByteHistory, cells: Array, warp: Array) -> Array:
        """Bytes that the storing warp and another of its block have loaded by one instruction."""
        one, other = state.reader[cells], state.second[cells]
        together = (state.read_site[cells] == state.second_site[cells]) & (one // _WARPS == other // _WARPS)
        together &= state.read_epoch[cells] == state.second_epoch[cells]
        return np.asarray(together & ((one == warp) | (other == warp)))

    def must_not_be_used(
        self, site: int, located: Located, places: Array, warp: Array, cells: Array, state: ByteHistory
    ) -> None:
        """Report a warp that has stored what follows from its copy of what is overwritten; note others."""
        read = cells[places]
        found = np.stack([warp[places], state.read_site[read], state.readers[read]], axis=1)
        kinds, first = np.unique(found, axis=0, return_index=True)
        for place, (owner, read_site, readers) in zip(places[first].tolist(), kinds.tolist(), strict=True):
            block = owner // _WARPS * _WARPS
            known = {owner, *self.met.get(owner, ())}
            others = {block + number for number in range(32) if readers >> number & 1} - known
            late = self.copies.overwritten(read_site, sorted(others))
            if late is not None:
                self.report(site, place, located, late, "read", "write")

    def record(
        self, site: int, kind: str, cells: Array, warp: Array, epoch: Array, state: ByteHistory
    ) -> None:
        """Remember who was here: of readers the last two warps, first and last of one instruction."""
        if kind == "read":
            before = state.reader[cells], state.read_epoch[cells], state.read_site[cells]
            state.reader[cells], state.read_epoch[cells], state.read_site[cells] = warp, epoch, site
            if self.replicated:
                others = (before[0] // _WARPS != warp // _WARPS) | (before[1] != epoch) | (before[2] != site)
                state.readers[cells[others]] = 0
                np.bitwise_or.at(state.readers, cells, np.uint32(1) << (warp % _WARPS).astype(np.uint32))
            changed = before[0] != state.reader[cells]
            moved = cells[changed]
            state.second[moved] = before[0][changed]
            state.second_epoch[moved], state.second_site[moved] = before[1][changed], before[2][changed]
            # Several warps in this instruction: the last one won above, the first one wins here.
            early = np.flatnonzero(state.reader[cells] != warp)[::-1]
            state.second[cells[early]], state.second_epoch[cells[early]] = warp[early], epoch[early]
            state.second_site[cells[early]] = site
            return
        state.writer[cells] = warp
        state.write_epoch[cells] = epoch
        state.atomic[cells] = kind == "atomic"

    def ordered(self, other: int, when: int, warp: int, epoch: int) -> bool:
        """Whether an access of `other` at epoch `when` comes before `warp` now."""
        if other // _WARPS == warp // _WARPS:
            return when < epoch or other in self.met.get(warp, ())
        known = self.warps.get(warp)
        return known is not None and known.known.get(other, -1) >= when

    def report(self, site: int, place: int, located: Located, other: int, word: str, kind: str) -> None:
        """Name both sides."""
        verb = {"read": "reads", "write": "writes", "atomic": "updates"}[kind]
        self.fail(site, place, located, other, verb, word, "with nothing to order them")

    def report_cached(self, site: int, place: int, located: Located, other: int) -> None:
        """Report a load that may give what was there before the kernel (PTX ISA, ld.global.nc)."""
        self.fail(site, place, located, other, "reads by .nc", "written", "in the same kernel")

    def fail(
        self, site: int, place: int, located: Located, other: int, verb: str, word: str, how: str
    ) -> None:
        """Raise a fault that names both sides."""
        lane = located.lane(place)
        block, warp = divmod(other, _WARPS)
        offset = int(located.offsets.reshape(-1)[place])
        who = f"block {block} warp {warp}"
        message = f"{verb} byte {offset} of {located.region.name}, {word} by {who} {how}"
        kind = f"{self.space}_race"
        raise Fault(kind, site, lane, located.shape, message, tensor=located.region.name)

    def synchronise(self, located: Located, lanes: Array, warp: Array, epoch: Array) -> None:
        """Exchange knowledge at the addresses of an atomic, as its semantics say."""
        words = self.pending
        acquires = bool({"acquire", "acq_rel"} & set(words))
        releases = bool({"release", "acq_rel"} & set(words))
        for offset, key, now in zip(
            located.offsets.reshape(-1).tolist(), warp.tolist(), epoch.tolist(), strict=True
        ):
            place = (id(located.region), offset)
            mine = self.warps.setdefault(key, WarpKnowledge())
            there, in_order = (of.setdefault(place, {}) for of in (self.published, self.published_in_order))
            join(mine.seen, there)
            join(mine.seen_in_order, in_order)
            join(in_order, mine.fenced_in_order)
            if acquires:
                join(mine.known, there)
            if releases:
                join(there, self.history(key, now))
            elif mine.fenced is not None:
                join(there, mine.fenced)

    def history(self, warp: int, epoch: int) -> Knowledge:
        """Everything that comes before this moment of a warp."""
        mine = dict(self.warps.setdefault(warp, WarpKnowledge()).known)
        block = warp // _WARPS
        for other in range(block * _WARPS, block * _WARPS + 32):
            mine[other] = epoch - 1
        mine[warp] = epoch
        return mine

    def ordering(self, wave: Wave, site: int, lanes: Array, words: tuple[str, ...]) -> None:
        """Turn, at a fence, earlier relaxed atomics into acquires and later ones into releases."""
        self.pending = words
        if words[0] not in ("fence", "membar") or "cta" in words:
            return
        warps, epochs = self.warp_keys(wave, lanes)
        for key, now in {(int(w), int(e)) for w, e in zip(warps, epochs, strict=True)}:
            mine = self.warps.setdefault(key, WarpKnowledge())
            join(mine.known, mine.seen)
            if words[0] == "membar" or "sc" in words:
                join(mine.known, mine.seen_in_order)
                join(mine.fenced_in_order, self.history(key, now))
            mine.fenced = self.history(key, now)

    def barrier(self, wave: Wave, lanes: Array) -> None:
        """Warps of a block tell each other what they know."""
        blocks, counts = np.unique(lanes // wave.threads, return_counts=True)
        for block, count in zip(blocks.tolist(), counts.tolist(), strict=True):
            key = self.block_key(wave, block)
            if count < wave.threads:
                if (
                    self.space == "shared"
                ):  # of several readers the last two are known: all of a block, or none
                    raise UnsupportedFeature(
                        "a watch for races beside barriers of a part of a block in a cluster"
                    )
                own = lanes[lanes // wave.threads == block] % wave.threads // WARP
                self.meet({key * _WARPS + int(warp) for warp in own})
                continue
            for warp in range(key * _WARPS, (key + 1) * _WARPS):
                self.met.pop(warp, None)
            self.tell(range(key * _WARPS, key * _WARPS + -(-wave.threads // WARP)))
            self.epochs[key] = self.epochs.get(key, 0) + 1

    def barrier_of_cluster(self, wave: Wave, lanes: Array) -> None:
        """Warps of all blocks of a cluster tell each other what they know and have done."""
        blocks = np.unique(lanes // wave.threads).tolist()
        warps = [
            self.block_key(wave, block) * _WARPS + number
            for block in blocks
            for number in range(-(-wave.threads // WARP))
        ]
        done = {warp: self.epochs.get(warp // _WARPS, 0) for warp in warps}
        for warp in warps:
            join(self.warps.setdefault(warp, WarpKnowledge()).known, done)
        self.tell(warps)
        self.barrier(wave, lanes)

    def meet(self, warps: set[int]) -> None:
        """Warps that are a part of a block have met: what they do until all meet is taken to be ordered."""
        self.tell(warps)
        together = warps.union(*(self.met.get(warp, set()) for warp in warps))
        for warp in warps:
            self.met[warp] = together

    def tell(self, warps: Collection[int]) -> None:
        """Let warps know what each of them knows, and pass on what they have fenced and seen in order."""
        members = [self.warps.setdefault(warp, WarpKnowledge()) for warp in warps]
        shared: tuple[Knowledge, Knowledge, Knowledge] = ({}, {}, {})
        for member in members:
            for all_of_it, own in zip(shared, member.passed_on, strict=True):
                join(all_of_it, own)
        for member in members:
            for all_of_it, own in zip(shared, member.passed_on, strict=True):
                join(own, all_of_it)

    def finish(self, launch: object) -> None:
        """Nothing is left to check."""


def monitor(machine: Machine, *, replicated: bool) -> GlobalRaces:
    """Make what watches one launch."""
    return GlobalRaces(replicated=replicated, equal_stores="equal_stores" in machine.sanitize)
