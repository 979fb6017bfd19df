"""Order of the waves of a launch: one after the other, and in turns where blocks wait for each other.

Blocks of one cluster are in one wave.

A block may wait for any other that is on the device at the same time. As many blocks as a device holds
are resident, no more: a block that waits for one beyond those waits for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.execute import clusters, prepared_waves
from verifier.machine.execute.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable

    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.execute.launch_record import LaunchRecord
    from verifier.machine.execute.prepared_waves import PreparedWave


_SHUFFLED = 1 << 22  # blocks up to which a random order is a shuffled list (32 MB)
_WINDOWS = 1 << 28  # bytes of shared and local memory that one wave may take


@dataclass(kw_only=True, eq=False)
class RunningWave:
    """Blocks that have begun: where they run, and how far they are."""

    prepared: PreparedWave
    scheduler: Scheduler


class Waves:
    """The waves of one launch."""

    def __init__(self, launch: LaunchRecord) -> None:
        """Begin with no wave."""
        self.launch = launch
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        self.total = launch.grid[0] * launch.grid[1] * launch.grid[2]
        self.together = prod(launch.cluster or (1,))
        resident = launch.machine.resident_blocks(threads, launch.frame.shared_used)
        self.resident = self.in_clusters(resident)
        window = launch.frame.shared + threads * launch.frame.local
        by_memory = _WINDOWS // max(window, 1)
        self.size = self.in_clusters(min(launch.machine.lanes_per_wave // threads, self.resident, by_memory))
        self.numbers = block_numbers(self.total // self.together, launch.machine.schedule_seed)
        if (chosen := launch.chosen) is not None:
            self.total, self.numbers = len(chosen), lambda start, stop: chosen[start:stop]
        self.started, self.steps = 0, 0
        self.waiting: list[RunningWave] = []
        self.free: PreparedWave | None = None

    def run(self) -> None:
        """Execute all blocks, or those that were chosen."""
        while self.started < self.total or self.waiting:
            places = self.resident - sum(w.scheduler.unfinished_blocks() for w in self.waiting)
            if self.started < self.total and places >= self.together:
                count = min(self.size, self.in_clusters(places), self.total - self.started)
                self.advance(self.begin(count))
            else:
                self.take_turns()
        if self.free is not None:
            prepared_waves.give_back(self.launch, self.free)

    def begin(self, count: int) -> RunningWave:
        """Give the next blocks a place, that of a wave of the same size that has ended if there is one."""
        first, last = (number // self.together for number in (self.started, self.started + count))
        if self.launch.cluster is None:
            ids = coordinates(self.numbers(first, last), self.launch.grid)
        else:
            ids = clusters.coordinates(self.numbers(first, last), self.launch.grid, self.launch.cluster)
        self.started += count
        if self.free is not None and self.free.wave.blocks == count:
            self.free.wave.restart(ids)
        else:
            if self.free is not None:
                prepared_waves.give_back(self.launch, self.free)
            self.free = prepared_waves.take(self.launch, ids)
        prepared, self.free = self.free, None
        compiled = self.launch.compiled
        scheduler = Scheduler(compiled.program, prepared.wave, compiled.sites, self.left(), prepared.members)
        return RunningWave(prepared=prepared, scheduler=scheduler)

    def in_clusters(self, blocks: int) -> int:
        """Round a number of blocks down to whole clusters, of which there is one at least."""
        return max(blocks // self.together, 1) * self.together

    def left(self) -> int:
        """Count the steps that are left of the launch's limit."""
        return self.launch.machine.step_limit - self.steps

    def advance(self, wave: RunningWave) -> bool:
        """Let a wave run until it ends or waits; true if it did anything but wait."""
        before = wave.scheduler.steps
        wave.scheduler.step_limit = self.left() + before
        ended = wave.scheduler.run(wave.prepared.full, wave.prepared.part)
        self.steps += wave.scheduler.steps - before
        if not ended and wave not in self.waiting:
            self.waiting.append(wave)
        if ended:
            if wave in self.waiting:
                self.waiting.remove(wave)
            if self.free is not None:
                prepared_waves.give_back(self.launch, self.free)
            self.free = wave.prepared
        return ended or wave.scheduler.progressed

    def take_turns(self) -> None:
        """Let every waiting wave try again; who waits while others get on has not waited in vain."""
        moved = False
        for wave in list(self.waiting):
            wave.scheduler.absent = self.total - self.started
            moved |= self.advance(wave)
        for wave in self.waiting if moved else ():
            wave.scheduler.idle_turns = 0


def block_numbers(total: int, seed: int | None) -> Callable[[int, int], Array]:
    """Order in which blocks are served, as a function of a range of places."""
    if seed is None:
        return np.arange
    generator = np.random.default_rng(seed)
    if total <= _SHUFFLED:
        order = generator.permutation(total)
        return lambda start, stop: order[start:stop]
    # A list of so many blocks would not fit into memory: multiples of a number without common divisor.
    step, first = int(generator.integers(1, total)), int(generator.integers(total))
    while gcd(step, total) != 1:
        step = step % (total - 1) + 1
    return lambda start, stop: np.array([(first + step * n) % total for n in range(start, stop)])


def coordinates(numbers: Array, grid: tuple[int, int, int]) -> Array:
    """(n,) block numbers to (n, 3) coordinates."""
    found = np.empty((len(numbers), 3), dtype=numbers.dtype)
    rest, found[:, 0] = np.divmod(numbers, grid[0])
    found[:, 2], found[:, 1] = np.divmod(rest, grid[1])
    return found
