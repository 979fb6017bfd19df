"""Barriers in shared memory (`mbarrier`): a phase ends when all arrivals and all announced bytes have come.

Where PTX leaves the word of such a barrier opaque, this one holds from the lowest bit: how many arrivals the
phase lacks, how many each phase has, the bytes that are announced and have not come, and the phase's parity.
"""

# ruff: noqa: PLR0917 - these are called by position, many times a launch

from __future__ import annotations

from dataclasses import dataclass
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


def begin(site: int, found: Located, counts: Array, begun: set[int]) -> None:
    """Let barriers wait for so many arrivals (`mbarrier.init`).

    Raises Fault for a number of arrivals that no barrier counts.
    """
    words = found.region.view("u8")
    for place, (offset, count) in enumerate(
        zip(found.offsets.reshape(-1).tolist(), counts.tolist(), strict=True)
    ):
        if not 1 <= count <= _COUNT:
            message = f"a barrier in shared memory is to wait for {count} arrivals, not 1 to {_COUNT}"
            raise Fault("divergent_barrier", site, found.lane(place), found.shape, message)
        begun.add(offset)
        words[offset // 8] = BarrierState(missing=count, expected=count, octets=0, parity=0).word()


def must_have_begun(site: int, found: Located, begun: set[int]) -> None:
    """Raise Fault for a word that `mbarrier.init` has not written, or `mbarrier.inval` has taken back."""
    for place, offset in enumerate(found.offsets.reshape(-1).tolist()):
        if offset not in begun:
            message = "what lies there is no barrier: `mbarrier.init` has not written it"
            raise Fault("uninitialised", site, found.lane(place), found.shape, message)


def parity(found: Located) -> Array:
    """Give the parity of the phase that is under way, for each lane."""
    words: Array = found.region.view("u8")[found.offsets.reshape(-1) // 8]
    return words >> np.uint64(_PARITY) & np.uint64(1)


def advance(site: int, found: Located, arrivals: Array, announced: Array, come: Array) -> None:
    """Count arrivals, bytes that are announced, and bytes that have come, lane after lane.

    arrivals, announced, come: of each lane.
    Raises Fault where more arrive than a phase has, or more bytes are on their way than a barrier counts.
    """
    words = found.region.view("u8")
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


# What emitted code calls; `mask`: which lanes of `group` execute.


def start(
    wave: Wave, site: int, group: Group, space: str, address: Array, counts: Array, mask: Array | None
) -> None:
    """Do `mbarrier.init`."""
    for found in _located(wave, site, group, space, address, mask):
        begin(site, found, _active(counts, group, found), wave.barriers)


def end(wave: Wave, site: int, group: Group, space: str, address: Array, mask: Array | None) -> None:
    """Do `mbarrier.inval`."""
    for found in _located(wave, site, group, space, address, mask):
        must_have_begun(site, found, wave.barriers)
        wave.barriers.difference_update(found.offsets.reshape(-1).tolist())


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
    for found in _located(wave, site, group, space, address, mask):
        must_have_begun(site, found, wave.barriers)
        states[... if found.selection is None else found.selection] = parity(found).reshape(
            found.offsets.shape
        )
        arrivals, announced = (_active(one, group, found) for one in counts)
        advance(site, found, arrivals, announced, np.zeros_like(arrivals))
    return states


def deliver(wave: Wave, site: int, group: Group, address: Array, octets: int, mask: Array | None) -> None:
    """Count bytes that `st.async` has brought, at barriers of a cluster."""
    for found in _located(wave, site, group, "cluster", address, mask):
        must_have_begun(site, found, wave.barriers)
        come = np.full(found.offsets.size, octets)
        advance(site, found, np.zeros_like(come), np.zeros_like(come), come)


def is_over(
    wave: Wave, site: int, group: Group, space: str, address: Array, state: Array, mask: Array | None
) -> Array:
    """Answer `test_wait` and `try_wait`: whether the phase of this state, or parity, is over."""
    answer = np.zeros(group.shape, dtype=bool)
    for found in _located(wave, site, group, space, address, mask):
        must_have_begun(site, found, wave.barriers)
        over = parity(found) != (_active(state, group, found) & 1)
        answer[... if found.selection is None else found.selection] = over.reshape(found.offsets.shape)
    return answer


def _located(
    wave: Wave, site: int, group: Group, space: str, address: Array, mask: Array | None
) -> Iterator[Located]:
    """Find the barriers of these lanes, one for each lane, and tell the monitors that they are used."""
    shape = group.shape
    everywhere = None if mask is None else np.broadcast_to(mask, shape)
    for found in wave.locate(site, group, space, np.broadcast_to(address, shape), 8, everywhere):
        for monitor in wave.monitors:
            monitor.barrier_object(wave, site)
        if found.selection is None:
            found.offsets = np.broadcast_to(found.offsets, shape)
        yield found


def _active(values: Array, group: Group, found: Located) -> Array:
    """Values of the lanes that execute, one after the other."""
    whole = np.broadcast_to(values, group.shape)
    return (whole if found.selection is None else whole[found.selection]).reshape(-1).astype(np.int64)
