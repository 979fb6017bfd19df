"""The extents of a wave: which blocks it runs, of how many threads, on what device."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verifier.machine.arithmetic.numerics import Array


@dataclass(kw_only=True, eq=False)
class GridExtents:
    """Blocks that run together.

    `block_ids`: (blocks, 3), where each block lies in the grid. `grid`: blocks of the launch along each axis;
    `block`: threads of a block. `shared_size`: bytes of shared memory of a block, `dynamic_shared` and
    `shared_used`: what the launch asks for, and with static variables. `multiprocessors`: of the device.
    `exposed`: registers that may be read before they are written, with the byte that fills them for every
    wave. `block_numbers`: coordinates of the blocks along an axis, as (blocks, 1) arrays that change in place
    when other blocks run.
    """

    block_ids: Array
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_size: int
    dynamic_shared: int
    shared_used: int
    multiprocessors: int
    exposed: list[tuple[Array, int]] = field(default_factory=list)
    block_numbers: dict[int, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Count blocks, and threads of a block."""
        self.blocks, self.threads = len(self.block_ids), prod(self.block)

    def restart(self, block_ids: Array) -> None:
        """Stand for as many other blocks; registers that may be read first are filled again."""
        self.block_ids = block_ids
        for axis, array in self.block_numbers.items():
            array[:, 0] = block_ids[:, axis]
        for array, filler in self.exposed:
            array.fill(filler)
