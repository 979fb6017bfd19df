"""Launches: from a kernel, a grid and arguments to waves of blocks executed one after the other."""

# ruff: noqa: PLR0917 - these are called by position, many times a launch

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from operator import index
from typing import Any

import numpy as np

from verifier.machine.approximation import Approximation, Correct
from verifier.machine.arguments import pack
from verifier.machine.findings import LaunchError, UnsupportedFeature
from verifier.machine.frames import lay_out
from verifier.machine.memory import GlobalMemory
from verifier.machine.sessions import count_run, current
from verifier.machine.translation import compiled
from verifier.machine.wave import Monitor
from verifier.machine.waves import Waves

_MAX_THREADS = 1024
_MAX_GRID_YZ = 65535
# Source: CUDA C++ programming guide, "Technical specifications per compute capability".
_MAX_SHARED = {80: 166912, 86: 101376, 89: 101376, 90: 232448, 100: 232448, 120: 101376}
# Threads, blocks and bytes of shared memory that a multiprocessor holds; the system keeps 1 KB a block.
_HOLDS = {
    80: (2048, 32, 164 << 10),
    86: (1536, 16, 100 << 10),
    89: (1536, 24, 100 << 10),
    90: (2048, 32, 228 << 10),
    100: (2048, 32, 228 << 10),
    120: (1536, 24, 100 << 10),
}
_MAX_LOCAL = 512 << 10  # bytes a thread, same table
_SYSTEM_SHARED = 1 << 10
# A wave of about this many lanes keeps the live registers in the processor's cache.
_LANES_PER_WAVE = 8192
_STEP_LIMIT = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A device to be played: architecture, size, and the answers where PTX leaves a choice.

    `contraction`: "on" fuses multiplications and additions as ptxas may, "off" runs the PTX as written.
    `schedule_seed`: None serves blocks in order, an integer in a random order.
    `poison`: byte that fills registers and shared memory before use; None means zeros.
    `bounds`: "storage" lets a kernel touch all of a tensor's storage, "view" only the bytes between the
    first and the last element of the tensor it was given.
    `sanitize`: names of the optional sanitizers: uninitialised, shared_races, unequal_stores (by
    lanes of one warp to one shared byte in one instruction), global_races, inputs
    (no store to the arguments named in `read_only`), outputs (every element of those in `outputs` written).
    """

    architecture: int = 90
    multiprocessors: int = 132
    contraction: str = "off"
    approximation: Approximation = field(default_factory=Correct)
    schedule_seed: int | None = None
    poison: int | None = 0xA5
    bounds: str = "storage"
    sanitize: frozenset[str] = frozenset()
    step_limit: int = _STEP_LIMIT
    lanes_per_wave: int = _LANES_PER_WAVE
    read_only: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset()

    def max_shared(self) -> int:
        """Bytes of shared memory that a block may ask for."""
        known = [a for a in _MAX_SHARED if a <= self.architecture]
        return _MAX_SHARED[max(known)] if known else 49152

    def resident_blocks(self, threads: int, shared: int) -> int:
        """Count the blocks of so many threads and bytes of shared memory that the device holds at once.

        Registers may allow fewer: how many ptxas gives a thread does not stand in the PTX.
        """
        known = [a for a in _HOLDS if a <= self.architecture]
        most_threads, most_blocks, most_shared = _HOLDS[max(known, default=80)]
        by_threads = most_threads // (-(-threads // 32) * 32)
        by_shared = most_shared // (shared + _SYSTEM_SHARED)
        return self.multiprocessors * max(1, min(most_blocks, by_threads, by_shared))


def launch_ptx(
    ptx: str,
    kernel: str,
    grid: Sequence[int],
    block: Sequence[int],
    shared_bytes: int,
    arguments: Sequence[Any],
    *,
    machine: Machine | None = None,
    names: Sequence[str] | None = None,
    copies: bool = False,
) -> None:
    """Execute a kernel of a PTX module on CPU tensors, in place.

    grid, block: up to three extents. shared_bytes: dynamic shared memory of a block.
    arguments: one per kernel parameter: a torch tensor (its data pointer is passed), a Python int, float or
    bool, a numpy scalar, a ctypes value, bytes (a structure passed by value), or None (a null pointer).
    Python numbers take the type and width of the PTX parameter. names: what reports call the arguments.
    copies: where there are fewer elements than threads, the compiler lets threads be copies of each other
    (Triton does), which the race sanitizers allow for.

    Raises MachineFinding for a defect that execution shows, UnsupportedInstruction for PTX outside the
    subset, UnsupportedFeature for what is not played otherwise, LaunchError for a launch that no device would
    accept.
    """
    session = current()
    machine = machine or (session.machine if session else Machine())
    if session is not None:
        session.codes.add((ptx, kernel))
    with session.remembering() if session is not None else nullcontext():
        Launch(ptx, kernel, grid, block, shared_bytes, arguments, machine, names, copies=copies).run()
    count_run(grid)


def _extents(values: Sequence[int], what: str) -> tuple[int, int, int]:
    try:
        full = [index(v) for v in values] + [1] * (3 - len(values))
    except TypeError:
        raise LaunchError(f"{what} has to be whole numbers, not {tuple(values)}") from None
    if len(full) != 3 or any(v < 0 for v in full):
        raise LaunchError(f"{what} has to be up to three extents, not {tuple(values)}")
    return full[0], full[1], full[2]


class Launch:
    """One launch: arguments mapped, blocks ordered, waves run."""

    def __init__(
        self,
        ptx: str,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        shared_bytes: int,
        arguments: Sequence[Any],
        machine: Machine,
        names: Sequence[str] | None,
        *,
        copies: bool = False,
    ) -> None:
        """See `launch_ptx`."""
        from verifier.machine.sanitizers import make_monitors

        self.machine, self.kernel = machine, kernel
        self.grid, self.block = _extents(grid, "grid"), _extents(block, "block")
        self.memory = GlobalMemory()
        self.monitors: tuple[Monitor, ...] = make_monitors(machine, copies=copies)
        full = any(getattr(monitor, "every_lane", False) for monitor in self.monitors)
        session = current()
        self.slots = session.slots if session else None
        shadow = "uninitialised" if "uninitialised" in machine.sanitize else None
        if self.slots is not None:
            if shadow:
                raise LaunchError("either an arithmetic or the tracking of uninitialised values, not both")
            shadow = getattr(self.slots.arithmetic, "shadow", "slots")
        self.compiled = compiled(ptx, kernel, machine.contraction, full or shadow == "uninitialised", shadow)
        if self.slots is not None:
            self.slots.counters.broken.update(self.compiled.broken)
            self.slots.enter(kernel, self.compiled.sites)
        self.frame = lay_out(self.compiled.program, self.compiled.used, self.memory, shared_bytes)
        self.names = list(names) if names else [p.name for p in self.compiled.program.kernel.parameters]
        self.parameters = pack(
            self.compiled.program.kernel, self.names, arguments, self.memory, machine.bounds
        )
        self.check()

    def check(self) -> None:
        """Refuse what a device would refuse."""
        threads = self.block[0] * self.block[1] * self.block[2]
        directives = self.compiled.program.kernel.directives
        cluster = int(np.prod(directives.get("reqnctapercluster") or (1,)))
        if cluster > 1 or ("explicitcluster" in directives and "reqnctapercluster" not in directives):
            raise UnsupportedFeature("thread-block clusters", self.kernel)
        if self.grid[0] >= 1 << 31 or max(self.grid[1:]) > _MAX_GRID_YZ:
            raise LaunchError(
                f"a grid of {self.grid}; at most (2^31 - 1, {_MAX_GRID_YZ}, {_MAX_GRID_YZ}) is possible"
            )
        if not 1 <= threads <= _MAX_THREADS:
            raise LaunchError(f"a block of {threads} threads; between 1 and {_MAX_THREADS} are possible")
        if self.frame.shared > self.machine.max_shared():
            raise LaunchError(
                f"{self.frame.shared} bytes of shared memory; the device has {self.machine.max_shared()}"
            )
        if self.frame.local > _MAX_LOCAL:
            raise LaunchError(
                f"{self.frame.local} bytes of local memory a thread; at most {_MAX_LOCAL} are possible"
            )
        required = self.compiled.program.kernel.directives.get("reqntid")
        if required and _extents(required, "reqntid") != self.block:
            raise LaunchError(f"the kernel requires blocks of {required} threads, not {self.block}")
        limit = self.compiled.program.kernel.directives.get("maxntid")
        if limit and threads > int(np.prod(limit)):
            raise LaunchError(
                f"the kernel allows at most {int(np.prod(limit))} threads a block, not {threads}"
            )

    def run(self) -> None:
        """Execute all blocks, wave after wave."""
        if 0 in self.grid:
            return
        with np.errstate(all="ignore"), without_modes():
            Waves(self).run()
        for monitor in self.monitors:
            finish = getattr(monitor, "finish", None)
            if finish:
                finish(self)


def without_modes() -> AbstractContextManager[Any]:
    """Keep what follows host operations out of the launch, which converts numbers with torch."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()
