"""Reduction trees as data: which partial results a reduction combines, in which order.

A tree is a program on the N leaves: steps of disjoint pairs (left, right), each of which puts
`combine(left, right)` in the place of `left`; the last left is the root. The same program drives a
rounded simulation, a bound that follows the nodes, and the depth that the closed forms need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from verifier.arithmetic.trees.steps import (
    Numbering,
    Stages,
    Step,
    cascade_steps,
    far_halves,
    halves,
    imbalance,
    lane_heads,
    lane_steps,
    stages_along,
    warps_first,
)

__all__ = [
    "Numbering",
    "Stages",
    "Step",
    "Tree",
    "any_order",
    "either",
    "fold",
    "of_all",
    "pairwise",
    "sequential",
    "stages_along",
    "tile",
    "torch_cascade",
    "tree",
]

TreeKind = Literal["any_order", "sequential", "pairwise", "lanes", "chunks", "custom"]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A reduction order for every length N.

    `lanes` lanes take the elements in turn (`lanes`: element i belongs to lane i mod lanes;
    `chunks`: each lane has one contiguous chunk), each lane is summed in order, then the lanes
    are combined by halves (`butterfly`) or one after another (`sequential`).
    A butterfly may join neighbours first or halves of the block first (shuffles at growing or at
    falling distance): `steps` yields the former, `orders` both, and bounds hold for both. With a `warp` of so
    many lanes it may join the lanes of each warp before the warps, too.
    `extra_depth` adds further additions per leaf, for instance partial sums of several blocks.
    `depth_of`, `steps_of`, `updates_of` and `stages_of` define a custom tree; only the first is needed.
    `updates_of` yields the steps within lanes where the order of the lanes' merges is unknown.
    `alternatives` are trees of which the kernel follows one (see `either`); `orders` has them all.
    """

    kind: TreeKind
    lanes: int = 1
    combine: Literal["butterfly", "sequential"] = "butterfly"
    extra_depth: int = 0
    warp: int = 0
    depth_of: Callable[[int], int] | None = None
    steps_of: Callable[[int], Iterator[Step]] | None = None
    updates_of: Callable[[int], Iterator[Step]] | None = None
    stages_of: Callable[[int], Stages] | None = None
    alternatives: tuple[Tree, ...] = ()

    @property
    def declared(self) -> bool:
        """Whether this says anything: an any-order bound is weak."""
        return self.kind != "any_order"

    def depth(self, n: int) -> int:
        """Largest number of additions that one of n leaves meets on its way to the root."""
        if n <= 1:
            return self.extra_depth if n == 1 else 0
        if self.depth_of is not None:
            return min(self.depth_of(n), n - 1) + self.extra_depth
        if self.kind in {"any_order", "sequential"}:
            return n - 1 + self.extra_depth
        if self.kind == "pairwise":
            return (n - 1).bit_length() + self.extra_depth
        joins = (self.lanes - 1).bit_length() if self.combine == "butterfly" else self.lanes - 1
        return min(-(-n // self.lanes) - 1 + joins, n - 1) + self.extra_depth

    def stages(self, n: int) -> Stages:
        """Return the update and merge stages of a merge algorithm of n elements on this tree."""
        if n <= 1:
            return Stages(updates=0, merges=0, imbalance=1.0)
        if self.stages_of is not None:
            return self.stages_of(n)
        anything = float(n - 1)
        if self.kind in {"any_order", "custom"}:
            return Stages(updates=0, merges=self.depth(n), imbalance=anything, mixed=True)
        updates, merges, imbalance = self._own_stages(n)
        return Stages(
            updates=updates,
            merges=merges + self.extra_depth,
            imbalance=anything if self.extra_depth else imbalance,
        )

    def _own_stages(self, n: int) -> tuple[int, int, float]:
        """Return updates, merges and imbalance without the further additions."""
        if self.kind == "sequential":
            return n - 1, 0, 1.0
        if self.kind == "pairwise":
            return 0, (n - 1).bit_length(), 1.0
        butterfly = self.combine == "butterfly"
        merges = min((self.lanes - 1).bit_length() if butterfly else self.lanes - 1, n - 1)
        contiguous = self.kind == "chunks"
        ratio = imbalance(n, self.lanes, contiguous=contiguous) if butterfly else float(n - 1)
        return -(-n // self.lanes) - 1, merges, ratio

    @property
    def named(self) -> bool:
        """Whether the tree names the order of all its combinations, so that bounds can follow them."""
        if self.extra_depth:
            return False
        return self.steps_of is not None or self.kind not in {"any_order", "custom"}

    @property
    def symmetric(self) -> bool:
        """Whether either partner of a merge may be the left one, as in a shuffle by exclusive or."""
        return self.combine == "butterfly" and self.kind in {"lanes", "chunks"}

    def updates(self, n: int) -> list[Step] | None:
        """Return the steps within lanes if the lanes' elements are known, though perhaps not their merges."""
        if self.updates_of is not None:
            return list(self.updates_of(n))
        return [step for step in self.steps(n) if step.update] if self.symmetric and self.named else None

    def orders(self, n: int) -> list[list[Step]]:
        """Return every program that the declaration admits on n leaves: one, for butterflies two.

        Raises:
            ValueError: the tree names no order.

        """
        if self.alternatives:
            return [order for tree in self.alternatives for order in tree.orders(n)]
        first = list(self.steps(n))
        lanes = min(self.lanes, n)
        if not self.symmetric or lanes <= 2:
            return [first]
        updates = [step for step in first if step.update]
        heads = lane_heads(n, lanes, contiguous=self.kind == "chunks")
        joins = [list(far_halves(heads)), *(warps_first(heads, self.warp) if 0 < self.warp < lanes else ())]
        return [first, *([*updates, *found] for found in joins)]

    def example(self, n: int) -> list[Step]:
        """Return one program on n leaves that the declaration admits, for simulations.

        An undeclared order is run in sequence, a tree known by its depth by halves if that is deep enough.
        """
        if self.named:
            return list(self.steps(n))
        if self.updates_of is not None:
            updates = list(self.updates_of(n))
            inside = np.concatenate([np.zeros(0, dtype=np.intp), *(step.right for step in updates)])
            return [*updates, *halves(np.setdiff1d(np.arange(n, dtype=np.intp), inside))]
        deep = self.depth(n) < n - 1
        return list((pairwise() if deep else sequential()).steps(n))

    def steps(self, n: int) -> Iterator[Step]:
        """Yield the steps of the program on n leaves, without further additions.

        The left node of the last step is the root (leaf 0 if there is no step).

        Raises:
            ValueError: the tree names no order.

        """
        if self.steps_of is not None:
            yield from self.steps_of(n)
            return
        if self.kind in {"any_order", "custom"}:
            msg = f"a tree of kind {self.kind!r} names no order to execute"
            raise ValueError(msg)
        if self.kind == "pairwise":
            yield from halves(np.arange(n, dtype=np.intp))
            return
        lanes = 1 if self.kind == "sequential" else min(self.lanes, n)
        yield from lane_steps(n, lanes, contiguous=self.kind == "chunks")
        heads = lane_heads(n, lanes, contiguous=self.kind == "chunks")
        if self.combine == "butterfly":
            yield from halves(heads)
        else:
            for head in heads[1:]:
                yield Step(left=heads[:1], right=np.array([head], dtype=np.intp), update=False)


def any_order() -> Tree:
    """Return the tree that stands for every order: its bound is valid for all and weak."""
    return Tree(kind="any_order")


def sequential() -> Tree:
    """Return the tree of one accumulator that meets the elements in order."""
    return Tree(kind="sequential")


def pairwise() -> Tree:
    """Return the tree that adds neighbours, then neighbouring pairs, and so on."""
    return Tree(kind="pairwise")


def tree(
    *,
    lanes: int | None = None,
    chunks: int | None = None,
    depth: Callable[[int], int] | int | None = None,
    combine: Literal["butterfly", "sequential"] = "butterfly",
    extra_depth: int = 0,
    warp: int = 0,
) -> Tree:
    """Declare a reduction tree by exactly one of `lanes`, `chunks` or `depth`.

    lanes: lanes that take the elements in turn, for instance the threads of a block.
    chunks: lanes that take contiguous chunks.
    depth: the largest number of additions that a leaf meets, a number or a function of N.

    warp: of a butterfly of lanes, how many are joined first, as shuffles join those of a warp; 0: none.

    Raises:
        ValueError: not exactly one of the three is given, or it is not positive; or a warp without lanes.

    """
    given = [name for name, v in (("lanes", lanes), ("chunks", chunks), ("depth", depth)) if v is not None]
    if len(given) != 1:
        raise ValueError(f"tree() takes exactly one of lanes, chunks and depth; given: {given or 'none'}")
    if warp and (lanes is None or combine != "butterfly" or warp < 2):
        raise ValueError("tree() takes a warp of at least 2 with lanes that are joined by a butterfly")
    if depth is not None:
        return Tree(
            kind="custom", depth_of=depth if callable(depth) else _constant(depth), extra_depth=extra_depth
        )
    count = lanes if lanes is not None else chunks
    if count is None or count < 1:
        raise ValueError(f"tree() needs a positive number of lanes or chunks, not {count}")
    return Tree(
        kind="lanes" if lanes else "chunks", lanes=count, combine=combine, extra_depth=extra_depth, warp=warp
    )


def tile(*, block: int, threads: int, element_bytes: int = 4) -> Tree:
    """Declare the tree of a row read in tiles of `block` columns, one accumulator per column of the tile.

    Compilers give each thread a run of k neighbours, at least one 16-byte vector and at most its
    share of the tile, and a run is summed in order before threads are combined by halves; the depth
    covers every such k. Smaller rows use the next power of two as their tile.
    """

    def columns_of(n: int) -> int:
        return min(block, 1 << max(n - 1, 0).bit_length())

    def longest_run(columns: int) -> int:
        return min(columns, max(1, columns // threads, 16 // element_bytes))

    def joins(columns: int) -> int:
        runs = (1 << k for k in range(longest_run(columns).bit_length()))
        return max(run - 1 + (-(-columns // run) - 1).bit_length() for run in runs)

    def depth_of(n: int) -> int:
        columns = columns_of(n)
        return -(-n // columns) - 1 + joins(columns)

    def updates_of(n: int) -> Iterator[Step]:
        yield from lane_steps(n, min(columns_of(n), n), contiguous=False)

    def stages_of(n: int) -> Stages:
        columns = columns_of(n)
        full, tiles = n // columns, -(-n // columns)
        # A run in order meets one more column at a time; equal groups differ by the last tile only.
        imbalance = longest_run(columns) * tiles / full if full else float(max(n - 1, 1))
        return Stages(updates=tiles - 1, merges=min(joins(columns), n - 1), imbalance=imbalance)

    return Tree(kind="custom", depth_of=depth_of, updates_of=updates_of, stages_of=stages_of)


def torch_cascade(*, lanes: int, registers: int = 1) -> Tree:
    """Declare the order in which torch's CPU layer_norm and group_norm merge moments of a row.

    lanes: float32 lanes of a vector register (16 with AVX-512, 8 with AVX2).
    registers: registers that one load of the input fills: 1 for float32, 2 for float16 and bfloat16.

    Each lane updates through chunks of 16 vectors, chunks cascade pairwise, what is left of the
    cascade is merged from the lowest level, then the lanes are merged one after another into the
    elements that fill no vector.

    Source: ATen/native/cpu/moments_utils.h of torch 2.13, RowwiseMomentsImpl.

    Raises:
        ValueError: lanes or registers is not positive.

    """
    if lanes < 1 or registers < 1:
        raise ValueError(f"torch_cascade() needs positive lanes and registers, not {lanes} and {registers}")

    def steps_of(n: int) -> Iterator[Step]:
        yield from cascade_steps(n, lanes, registers)

    def stages_of(n: int) -> Stages:
        return stages_along(steps_of(n), n)

    def depth_of(n: int) -> int:
        stages = stages_of(n)
        return stages.updates + stages.merges

    return Tree(kind="custom", depth_of=depth_of, steps_of=steps_of, stages_of=stages_of)


def of_all(row: Tree, column: Tree, rows: int, columns: int) -> Tree:
    """Return what is known of a sum of all elements: each in its row and then over the rows, or vice versa.

    Where one of the two is not declared, nothing is.
    """
    if not (row.declared and column.declared):
        return any_order()
    return tree(depth=row.depth(columns) + column.depth(rows))


def either(*trees: Tree) -> Tree:
    """Declare that the kernel follows one of these trees, decided where it runs: bounds hold for all.

    Simulations follow the first. All trees must name their orders.

    Raises:
        ValueError: no tree is given, or one names no order.

    """
    if not trees or not all(tree.named for tree in trees):
        raise ValueError("either() takes trees that name their orders")

    def stages_of(n: int) -> Stages:
        found = [tree.stages(n) for tree in trees]
        return Stages(
            updates=max(s.updates for s in found),
            merges=max(s.merges for s in found),
            imbalance=max(s.imbalance for s in found),
            mixed=any(s.mixed for s in found),
        )

    return Tree(
        kind="custom",
        depth_of=lambda n: max(tree.depth(n) for tree in trees),
        steps_of=trees[0].steps,
        stages_of=stages_of,
        alternatives=trees,
    )


def fold(tree: Tree, leaves: list[T], combine: Callable[[T, T], T]) -> T:
    """Combine `leaves` along the tree, one pair at a time (for tests and small examples)."""
    nodes, root = list(leaves), 0
    for step in tree.steps(len(nodes)):
        for left, right in zip(step.left, step.right, strict=True):
            nodes[left] = combine(nodes[left], nodes[right])
            root = int(left)
    return nodes[root]


def _constant(depth: int) -> Callable[[int], int]:
    def depth_of(_: int) -> int:
        return depth

    return depth_of
