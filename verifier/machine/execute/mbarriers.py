"""Barriers in shared memory (`mbarrier`): a phase ends when all arrivals and all announced bytes have come.

Where PTX leaves the word of such a barrier opaque, this one holds from the lowest bit: how many arrivals the
phase lacks, how many each phase has, the bytes that are announced and have not come, and the phase's parity.
"""

# ruff: noqa: PLR0917 - these are called by position, many times a launch

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.execute.memory import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.execute.lane_groups import Group
    from verifier.machine.execute.memory import Located
    from verifier.machine.execute.wave import Wave

_COUNT = (1 << 20) - 1
"""The most arrivals of a phase, and bytes on their way (PTX ISA, "Contents of the mbarrier object")."""
_PARITY = 62


@dataclass(frozen=True, kw_only=True)
class BarrierState:
    """What a word says: arrivals that are missing, arrivals of a phase, missing bytes, and the parity."""

    missing: int
    expected: int
    octets: int
    parity: int

    @classmethod
    def of(cls, word: int) -> BarrierState:
        """Take a word apart."""
        octets = word >> 40 & (1 << 22) - 1
        return cls(
            missing=word & _COUNT,
            expected=word >> 20 & _COUNT,
            octets=octets - (octets >> 21 << 22),
            parity=word >> _PARITY & 1,
        )

    def word(self) -> int:
        """Put it together."""
        octets = self.octets & (1 << 22) - 1
        return self.missing | self.expected << 20 | octets << 40 | self.parity << _PARITY


def begin(found: Located, counts: Array) -> None:
    """Let barriers wait for so many arrivals (`mbarrier.init`)."""
    words = found.region.view("u8")
    for offset, count in zip(found.offsets.reshape(-1).tolist(), counts.tolist(), strict=True):
        state = BarrierState(missing=count, expected=count, octets=0, parity=0)
        words[offset // 8] = state.word()


def parity(found: Located) -> Array:
    """Give the parity of the phase that is under way, for each lane."""
    words: Array = found.region.view("u8")[found.offsets.reshape(-1) // 8]
    return words >> np.uint64(_PARITY) & np.uint64(1)


def advance(site: int, found: Located, arrivals: Array, announced: Array, come: Array) -> list[int]:
    """Count arrivals, bytes that are announced, and bytes that have come, lane after lane.

    arrivals, announced, come: of each lane. Returns the offset of the barrier at each end of a phase.
    Raises Fault where more arrive than a phase has, or more bytes are on their way than a barrier counts.
    """
    words, ended = found.region.view("u8"), []
    columns = (one.tolist() for one in (found.offsets.reshape(-1), arrivals, announced, come))
    for place, (offset, arrived, more, less) in enumerate(zip(*columns, strict=True)):
        before = BarrierState.of(int(words[offset // 8]))
        missing, octets = before.missing - arrived, before.octets + more - less
        if missing < 0 or abs(octets) > _COUNT:
            what = "arrivals than its phase has" if missing < 0 else "bytes than it counts"
            message = f"a barrier in shared memory is given more {what}"
            raise Fault("divergent_barrier", site, found.lane(place), found.shape, message)
        over = missing == 0 and octets == 0
        after = BarrierState(
            missing=before.expected if over else missing,
            expected=before.expected,
            octets=octets,
            parity=before.parity ^ over,
        )
        words[offset // 8] = after.word()
        if over:
            ended.append(offset)
    return ended


# What emitted code calls; `mask`: which lanes of `group` execute.


def start(
    wave: Wave, site: int, group: Group, space: str, address: Array, counts: Array, mask: Array | None
) -> None:
    """Do `mbarrier.init`."""
    for found, _ in _lanes(wave, site, group, space, address, mask):
        begin(found, _active(counts, group, found))


def arrive(
    wave: Wave,
    site: int,
    group: Group,
    space: str,
    address: Array,
    counts: tuple[Array, Array],
    mask: Array | None,
) -> Array:
    """Count arrivals and bytes that they announce; give the state from which `test_wait` goes on."""
    states = np.zeros(group.shape, dtype=np.uint64)
    for found, lanes in _lanes(wave, site, group, space, address, mask):
        states[... if found.selection is None else found.selection] = parity(found).reshape(
            found.offsets.shape
        )
        arrivals, announced = (_active(one, group, found) for one in counts)
        if arrivals.any():
            _tell(wave, "arrive", found, lanes)
        _advance(wave, site, found, arrivals, announced, np.zeros_like(arrivals))
    return states


def deliver(wave: Wave, site: int, group: Group, address: Array, octets: int, mask: Array | None) -> None:
    """Count bytes that `st.async` has brought, at barriers of a cluster."""
    for found, lanes in _lanes(wave, site, group, "cluster", address, mask):
        _tell(wave, "send", found, lanes)
        come = np.full(found.offsets.size, octets)
        _advance(wave, site, found, np.zeros_like(come), np.zeros_like(come), come)


def is_over(
    wave: Wave, site: int, group: Group, space: str, address: Array, state: Array, mask: Array | None
) -> Array:
    """Answer `test_wait` and `try_wait`: whether the phase of this state, or parity, is over."""
    answer = np.zeros(group.shape, dtype=bool)
    for found, lanes in _lanes(wave, site, group, space, address, mask):
        over = parity(found) != (_active(state, group, found) & 1)
        answer[... if found.selection is None else found.selection] = over.reshape(found.offsets.shape)
        if over.any():
            some = replace(found, offsets=found.offsets.reshape(-1)[over])
            _tell(wave, "wait", some, lanes.reshape(-1)[over])
    return answer


def _lanes(
    wave: Wave, site: int, group: Group, space: str, address: Array, mask: Array | None
) -> Iterator[tuple[Located, Array]]:
    """Find the barriers of these lanes, and say which lanes those are."""
    shape = group.shape
    everywhere = None if mask is None else np.broadcast_to(mask, shape)
    for found in wave.locate(site, group, space, np.broadcast_to(address, shape), 8, everywhere):
        if found.selection is None:
            found.offsets = np.broadcast_to(found.offsets, shape)
        yield found, group.lanes_of(shape, found.selection)


def _active(values: Array, group: Group, found: Located) -> Array:
    """Values of the lanes that execute, one after the other."""
    whole = np.broadcast_to(values, group.shape)
    return (whole if found.selection is None else whole[found.selection]).reshape(-1).astype(np.int64)


def _advance(wave: Wave, site: int, found: Located, arrivals: Array, announced: Array, come: Array) -> None:
    for offset in advance(site, found, arrivals, announced, come):
        _tell(wave, "end", replace(found, offsets=np.array([offset])), np.zeros(1, dtype=np.int64))


def _tell(wave: Wave, event: str, found: Located, lanes: Array) -> None:
    for monitor in wave.monitors:
        monitor.barrier_object(wave, event, found, lanes)
