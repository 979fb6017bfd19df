"""Races in shared memory: two warps touch a byte, one writes, and no barrier stands between.

Where blocks of a cluster share it, order is followed as in global memory.
"""

# ruff: noqa: PLR0917 - these are called by position, many times a launch

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from verifier.machine.execute.findings import UnsupportedFeature
from verifier.machine.execute.lane_groups import WARP
from verifier.machine.execute.memory import Fault
from verifier.machine.sanitizers.access_kinds import kind_in_races
from verifier.machine.sanitizers.global_races import GlobalRaces
from verifier.machine.sanitizers.parted_lanes import PARTED, PartedLanes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.execute.memory import Located
    from verifier.machine.execute.wave import Wave
    from verifier.machine.model import Machine
    from verifier.machine.ptx.syntax import Instruction

_NOBODY, _SEVERAL = -1, -2
_WARPS = 64  # warp numbers a block may use; a block has at most 32

SANITIZES = frozenset({"shared_races", "unequal_stores", "equal_stores"})


@dataclass(kw_only=True)
class _Shadow:
    """Per byte of a wave's shared memory: the last writer and reader warp, and their barrier epochs.

    met: of two warps of a block, whether the first has met the second at a barrier of a part of the block.
    """

    ids: Array
    writer: Array
    write_epoch: Array
    write_site: Array
    atomic: Array
    reader: Array
    read_epoch: Array
    epoch: Array
    met: Array
    parted: PartedLanes


class SharedRaces:
    """Happens-before by barriers; lanes of one warp count as ordered, since the machine runs them in step.

    Where nothing may be passed over they do not, if they were at no place together since (`parted_lanes`).

    Stores of the value that is already there are harmless and common (Triton lets replicated threads store
    the same partial sum), so they are not reported. Where threads may be copies of each other, neither are
    stores of two warps to one byte by one instruction in one epoch: both store their copy of one value, the
    sums of a butterfly being equal up to rounding. In CUDA C++ they are a race.
    """

    every_lane = True

    def __init__(self, *, unequal_stores: bool, replicated: bool, equal_stores: bool = False) -> None:
        """Start without any wave.

        unequal_stores: also report lanes of one warp that store different values to one byte in one
        instruction. PTX leaves open which of them stays; Triton does this knowingly, where the lanes of a
        butterfly hold the same sum up to rounding (every reduction whose merge does not commute exactly).
        replicated: threads may be copies of each other, as the compiler lays out elements.
        equal_stores: of threads that are no copies, report stores of the value that is there already, too,
        and of all threads strong accesses, which are no data race, but of which one may come first.
        """
        self.equal_stores, self.strict = equal_stores and not replicated, equal_stores
        self.unequal_stores, self.replicated = unequal_stores, replicated and not unequal_stores
        self.lanes_apart = unequal_stores
        self.states: WeakKeyDictionary[Wave, _Shadow] = WeakKeyDictionary()
        self.across = GlobalRaces(replicated=self.replicated, equal_stores=equal_stores, space="shared")

    def begin(self, sites: Sequence[Instruction]) -> None:
        """Take the instructions of the kernel."""
        self.across.begin(sites)

    def shadow(self, wave: Wave) -> _Shadow:
        """State of this wave, fresh when it begins or is restarted for other blocks."""
        state = self.states.get(wave)
        if state is None or state.ids is not wave.extents.block_ids:
            size = wave.shared.region.size
            state = self.states[wave] = _Shadow(
                ids=wave.extents.block_ids,
                writer=np.full(size, _NOBODY, dtype=np.int32),
                write_epoch=np.full(size, -1, dtype=np.int32),
                write_site=np.full(size, -1, dtype=np.int32),
                atomic=np.zeros(size, dtype=bool),
                reader=np.full(size, _NOBODY, dtype=np.int32),
                read_epoch=np.full(size, -1, dtype=np.int32),
                epoch=np.zeros(wave.blocks, dtype=np.int32),
                met=np.zeros((wave.blocks, _WARPS, _WARPS), dtype=np.bool_),
                parted=PartedLanes(size if self.strict else 0),
            )
        return state

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
        """Compare an access with the last ones of other warps in the same epoch."""
        if wave.clusters is not None:
            self.must_be_followed(wave, space, lanes, located)
            if space == "shared":
                self.on_its_way(wave, site, kind, located, width)
            self.across.access(wave, site, kind, space, located, lanes, width, values)
            return
        if space != "shared":
            return
        kind = kind_in_races(kind, ordered_alone=self.strict)
        self.on_its_way(wave, site, kind, located, width)
        state = self.shadow(wave)
        lanes = np.broadcast_to(lanes, located.offsets.shape).reshape(-1)
        cells = (located.offsets.reshape(-1)[:, None] + np.arange(width)).reshape(-1)
        owner = np.repeat(lanes, width)
        epoch = state.epoch[owner // wave.threads]
        warp = (owner // wave.threads * _WARPS + owner % wave.threads // WARP).astype(np.int32)
        harmless = (
            self.unchanged(located, values, width)
            if kind == "write" and not self.equal_stores
            else np.zeros(len(cells), dtype=bool)
        )
        if kind == "write":
            self.same_instruction(site, cells, located, values, width, warp)
        foreign_write = (
            (state.writer[cells] != _NOBODY)
            & (state.writer[cells] != warp)
            & (state.write_epoch[cells] == epoch)
        )
        if kind == "atomic":
            foreign_write &= ~state.atomic[cells]
        if kind == "write" and self.replicated:
            foreign_write &= state.write_site[cells] != site
        foreign_read = (
            (state.reader[cells] != _NOBODY)
            & (state.reader[cells] != warp)
            & (state.read_epoch[cells] == epoch)
        )
        if state.met.any():
            foreign_write &= ~self.have_met(state, warp, state.writer[cells])
            foreign_read &= ~self.have_met(state, warp, state.reader[cells])
        wrong = foreign_write & ~harmless
        what = "reads what another warp wrote" if kind == "read" else "overwrites what another warp wrote"
        if kind != "read":
            late = foreign_read & ~harmless & ~wrong
            if late.any() and not wrong.any():
                wrong, what = late, "overwrites what another warp reads"
        if wrong.any():
            self.report(site, int(np.flatnonzero(wrong)[0]), cells, width, what, wave, state, located)
        self.record(state, site, kind, cells, warp, epoch)
        place = state.parted.access(kind, cells, warp, owner, wave.companions) if self.strict else None
        if place is not None:
            message = f"touches shared byte {int(cells[place]) % wave.shared.stride}, which {PARTED}"
            lane = located.lane(place // width)
            raise Fault("shared_race", site, lane, located.shape, message, tensor="shared memory")

    def must_be_followed(self, wave: Wave, space: str, lanes: Array, located: Located) -> None:
        """Refuse what is not watched in clusters.

        Raises UnsupportedFeature where lanes of one warp are to be told apart, and where other blocks are
        touched beside loops that wait: what these order is no barrier, and who has ended is not known.
        """
        if space != "shared":
            return
        if self.lanes_apart:
            raise UnsupportedFeature("a watch for unequal stores in thread-block clusters")
        assert wave.clusters is not None
        if wave.clusters.loops_wait and wave.clusters.size > 1:
            own = np.broadcast_to(lanes, located.offsets.shape) // wave.threads
            if (located.offsets // max(wave.shared.stride, 1) != own).any():
                raise UnsupportedFeature("a watch for races between blocks of a cluster beside waiting loops")

    def on_its_way(self, wave: Wave, site: int, kind: str, located: Located, width: int) -> None:
        """Report who touches, its own lane included, what an asynchronous copy may be writing."""
        met = wave.async_copies.writes.met(located, width)
        if met.size:
            verb = "reads" if kind.endswith("read") else "overwrites"
            cell = int(located.offsets.reshape(-1)[met[0]]) % wave.shared.stride
            message = f"{verb} what an asynchronous copy on its way writes, at shared byte {cell}"
            lane = located.lane(int(met[0]))
            raise Fault("shared_race", site, lane, located.shape, message, tensor="shared memory")

    def have_met(self, state: _Shadow, warp: Array, other: Array) -> Array:
        """Whether warps have met others, since all of their block met, at barriers of a part of it.

        What one of them did after that is taken to be ordered, too, and so is what one of several has read.
        """
        block, own = np.divmod(warp, _WARPS)
        some = state.met[block, own].any(axis=1)
        return np.where(other == _SEVERAL, some, state.met[block, own, other % _WARPS])

    def record(self, state: _Shadow, site: int, kind: str, cells: Array, warp: Array, epoch: Array) -> None:
        """Remember who was here."""
        if kind == "read":
            fresh = (state.read_epoch[cells] != epoch) | (state.reader[cells] == warp)
            state.reader[cells] = np.where(fresh, warp, _SEVERAL)
            # Lanes of several warps that read one cell in one instruction: the last one won above.
            state.reader[cells[state.reader[cells] != warp]] = _SEVERAL
            state.read_epoch[cells] = epoch
            return
        state.writer[cells] = warp
        state.write_epoch[cells] = epoch
        state.write_site[cells] = site
        state.atomic[cells] = kind == "atomic"

    def unchanged(self, located: Located, values: list[Array] | None, width: int) -> Array:
        """Bytes to which a store writes what they hold already."""
        assert values is not None
        now = self.octets(located, values, width)
        cells = (located.offsets.reshape(-1)[:, None] + np.arange(width)).reshape(-1)
        return np.asarray(located.region.octets[cells] == now)

    def octets(self, located: Located, values: list[Array], width: int) -> Array:
        """Bytes that a store writes, lane after lane."""
        each = width // len(values)
        columns = [
            np.ascontiguousarray(np.broadcast_to(located.active(v), located.offsets.shape).reshape(-1))
            .view(np.uint8)
            .reshape(-1, each)
            for v in values
        ]
        return np.concatenate(columns, axis=1).reshape(-1)

    def same_instruction(
        self, site: int, cells: Array, located: Located, values: list[Array] | None, width: int, warp: Array
    ) -> None:
        """Report warps, or lanes, that store different values to one byte in one instruction."""
        assert values is not None
        written = self.octets(located, values, width)
        order = np.argsort(cells, kind="stable")
        same = cells[order][1:] == cells[order][:-1]
        clash = same & (written[order][1:] != written[order][:-1])
        if self.replicated:
            return
        if not self.unequal_stores:
            clash &= warp[order][1:] != warp[order][:-1]
        if clash.any():
            place = int(order[1:][clash][0]) // width
            raise Fault(
                "shared_race",
                site,
                place,
                located.offsets.shape,
                f"lanes store different values to shared byte {int(cells[place * width])} at once",
            )

    def report(
        self,
        site: int,
        place: int,
        cells: Array,
        width: int,
        what: str,
        wave: Wave,
        state: _Shadow,
        located: Located,
    ) -> None:
        """Name the byte and both warps."""
        cell = int(cells[place])
        other = int(state.writer[cell] if "wrote" in what else state.reader[cell])
        who = f"warp {other % _WARPS}" if other >= 0 else "several warps"
        message = f"{what} ({who}) at shared byte {cell % wave.shared.stride} with no barrier between"
        lane = located.lane(place // width)
        raise Fault("shared_race", site, lane, located.shape, message, tensor="shared memory")

    def barrier(self, wave: Wave, lanes: Array) -> None:
        """All threads of these blocks have met: a new epoch; or some, which know what any of them knew."""
        if wave.clusters is not None:
            self.across.barrier(wave, lanes)
            return
        state = self.shadow(wave)
        blocks, counts = np.unique(lanes // wave.threads, return_counts=True)
        whole = blocks[counts == wave.threads]
        state.epoch[whole] += 1
        state.met[whole] = False
        for block in blocks[counts < wave.threads]:
            own = lanes[lanes // wave.threads == block] % wave.threads // WARP
            known = state.met[block, own].any(axis=0)
            known[own] = True
            state.met[block, own] = known

    def barrier_of_cluster(self, wave: Wave, lanes: Array) -> None:
        """Warps of all blocks of a cluster have met."""
        self.across.barrier_of_cluster(wave, lanes)

    def barrier_object(self, wave: Wave, site: int) -> None:
        """Refuse barriers in shared memory: their phases are not followed."""
        self.across.barrier_object(wave, site)

    def ordering(self, wave: Wave, site: int, lanes: Array, words: tuple[str, ...]) -> None:
        """Fences order nothing between warps of one block by themselves."""
        if wave.clusters is not None:
            self.across.ordering(wave, site, lanes, words)

    def finish(self, launch: object) -> None:
        """Nothing is left to check."""


def monitor(machine: Machine, *, replicated: bool) -> SharedRaces:
    """Make what watches one launch."""
    return SharedRaces(
        unequal_stores="unequal_stores" in machine.sanitize,
        replicated=replicated,
        equal_stores="equal_stores" in machine.sanitize,
    )
