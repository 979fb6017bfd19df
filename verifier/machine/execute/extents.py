"""The extents of a wave: which blocks it runs, of how many threads, on what device."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from verifier.machine.arithmetic.numerics import Array


@dataclass(kw_only=True, eq=False)
class GridExtents:
    """Blocks that run together.

    `block_ids`: (blocks, 3), where each block lies in the grid. `grid`: blocks of the launch along each axis;
    `block`: threads of a block. `shared_size`: bytes of shared memory of a block, `dynamic_shared` and
    `shared_used`: what the launch asks for, and with static variables. `multiprocessors`: of the device.
    `cluster`: blocks of a cluster along each axis, None in a kernel that knows of none; `in_clusters`:
    whether the kernel says that it is one of clusters.
    `exposed`: registers that may be read before they are written, with the byte that fills them for every
    wave. `of_blocks`: registers that follow from the blocks' coordinates, as (blocks, 1) arrays that change
    in place when other blocks run, each with how it follows from (blocks, 3) coordinates.
    """

    block_ids: Array
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_size: int
    dynamic_shared: int
    shared_used: int
    multiprocessors: int
    cluster: tuple[int, int, int] | None = None
    in_clusters: bool = False
    exposed: list[tuple[Array, int]] = field(default_factory=list)
    of_blocks: dict[str, tuple[Array, Callable[[Array], Array]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Count blocks, and threads of a block."""
        self.blocks, self.threads = len(self.block_ids), prod(self.block)

    def restart(self, block_ids: Array) -> None:
        """Stand for as many other blocks; registers that may be read first are filled again."""
        self.block_ids = block_ids
        for array, numbers in self.of_blocks.values():
            array[:, 0] = numbers(block_ids)
        for array, filler in self.exposed:
            array.fill(filler)
