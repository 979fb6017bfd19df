"""The device that is played: its architecture, its size, and what it answers where PTX leaves a choice."""

from __future__ import annotations

from dataclasses import dataclass, field

from verifier.machine.arithmetic.approximation import Approximation, Correct

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
_SYSTEM_SHARED = 1 << 10
MAX_THREADS = 1024
"""Threads of a block, at most, on every architecture."""
MAX_THREADS_Z = 64
"""Those of them along z, at most."""
MAX_GRID_YZ = 65535
"""Blocks of a grid along y and along z, at most."""
# A wave of about this many lanes keeps the live registers in the processor's cache.
_LANES_PER_WAVE = 8192
_STEP_LIMIT = 1_000_000


@dataclass(frozen=True, kw_only=True)
class MaskedFill:
    """What a Triton load with a mask and without `other` gives the lanes that the mask leaves out.

    number: "nan", "finite", "positive" or "zero". place: file:line of the one load that is filled; None for
    all of them.
    """

    number: str
    place: str | None = None


@dataclass(frozen=True, kw_only=True)
class ChosenRows:
    """Rows of a tensor of `extent` rows whose blocks run; all other blocks of a launch are left out.

    as_before: how the grids of other launches have followed rows, which these have to do as well, in turn.
    """

    extent: int
    rows: tuple[int, ...]
    as_before: tuple[object, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A device to be played: architecture, size, and the answers where PTX leaves a choice.

    `contraction`: "on" fuses multiplications and additions as ptxas may, "off" runs the PTX as written.
    `schedule_seed`: None serves blocks in order, an integer in a random order.
    `masked_fill`: what masked loads of Triton without `other` are compiled to give where the mask is off;
    None leaves it to the compiler.
    `chosen_rows`: rows whose blocks run alone, in grids that follow the rows; None runs every block.
    `poison`: byte that fills registers and shared memory before use; None means zeros.
    `bounds`: "storage" lets a kernel touch all of a tensor's storage, "view" only the bytes between the
    first and the last element of the tensor it was given.
    `sanitize`: names of the optional sanitizers: uninitialised, shared_races, unequal_stores (by
    lanes of one warp to one shared byte in one instruction), equal_stores (races by stores of what is there
    already), global_races, inputs
    (no store to the arguments named in `read_only`), outputs (every element of those in `outputs` written).
    """

    architecture: int = 90
    multiprocessors: int = 132
    contraction: str = "off"
    approximation: Approximation = field(default_factory=Correct)
    schedule_seed: int | None = None
    masked_fill: MaskedFill | None = None
    chosen_rows: ChosenRows | None = None
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
