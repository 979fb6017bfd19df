"""Reduction trees as data: which partial results a reduction combines, in which order.

A tree is a program on the N leaves: steps of disjoint pairs (left, right), each of which puts
`combine(left, right)` in the place of `left`; the last left is the root. The same program drives a
rounded simulation, a bound that follows the nodes, and the depth that the closed forms need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

Index = np.ndarray[tuple[int], np.dtype[np.intp]]
Kind = Literal["any_order", "sequential", "pairwise", "lanes", "chunks", "custom"]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Step:
    """Disjoint pairs that are combined at once; `right` are single leaves where `update` is true."""

    left: Index
    right: Index
    update: bool


@dataclass(frozen=True, kw_only=True)
class Stages:
    """How a merge algorithm meets a tree: stages that every path is covered by.

    `updates` counts the single-element steps of one lane (d_W), `merges` the stages of merges
    after them (L), and `imbalance` bounds n_right / n_left over all merges of nonempty partners.
    `mixed`: any of the merges may be a step of a single element, since the lanes are unknown.
    """

    updates: int
    merges: int
    imbalance: float
    mixed: bool = False


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A reduction order for every length N.

    `lanes` lanes take the elements in turn (`lanes`: element i belongs to lane i mod lanes;
    `chunks`: each lane has one contiguous chunk), each lane is summed in order, then the lanes
    are combined by halves (`butterfly`) or one after another (`sequential`).
    A butterfly may join neighbours first or halves of the block first (shuffles at growing or at
    falling distance): `steps` yields the former, `orders` both, and bounds hold for both.
    `extra_depth` adds further additions per leaf, for instance partial sums of several blocks.
    `depth_of`, `steps_of`, `updates_of` and `stages_of` define a custom tree; only the first is needed.
    `updates_of` yields the steps within lanes where the order of the lanes' merges is unknown.
    `alternatives` are trees of which the kernel follows one (see `either`); `orders` has them all.
    """

    kind: Kind
    lanes: int = 1
    combine: Literal["butterfly", "sequential"] = "butterfly"
    extra_depth: int = 0
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
        imbalance = _imbalance(n, self.lanes, contiguous=contiguous) if butterfly else float(n - 1)
        return -(-n // self.lanes) - 1, merges, imbalance

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
        heads = _lane_heads(n, lanes, contiguous=self.kind == "chunks")
        return [first, [*updates, *_far_halves(heads)]]

    def example(self, n: int) -> list[Step]:
        """Return one program on n leaves that the declaration admits, for simulations.

        An undeclared order is run in sequence, a tree known by its depth by halves if that is deep enough.
        """
        if self.named:
            return list(self.steps(n))
        if self.updates_of is not None:
            updates = list(self.updates_of(n))
            inside = np.concatenate([np.zeros(0, dtype=np.intp), *(step.right for step in updates)])
            return [*updates, *_halves(np.setdiff1d(np.arange(n, dtype=np.intp), inside))]
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
            yield from _halves(np.arange(n, dtype=np.intp))
            return
        lanes = 1 if self.kind == "sequential" else min(self.lanes, n)
        yield from _lane_steps(n, lanes, contiguous=self.kind == "chunks")
        heads = _lane_heads(n, lanes, contiguous=self.kind == "chunks")
        if self.combine == "butterfly":
            yield from _halves(heads)
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
) -> Tree:
    """Declare a reduction tree by exactly one of `lanes`, `chunks` or `depth`.

    lanes: lanes that take the elements in turn, for instance the threads of a block.
    chunks: lanes that take contiguous chunks.
    depth: the largest number of additions that a leaf meets, a number or a function of N.

    Raises:
        ValueError: not exactly one of the three is given, or it is not positive.

    """
    given = [name for name, v in (("lanes", lanes), ("chunks", chunks), ("depth", depth)) if v is not None]
    if len(given) != 1:
        raise ValueError(f"tree() takes exactly one of lanes, chunks and depth; given: {given or 'none'}")
    if depth is not None:
        return Tree(
            kind="custom", depth_of=depth if callable(depth) else _constant(depth), extra_depth=extra_depth
        )
    count = lanes if lanes is not None else chunks
    if count is None or count < 1:
        raise ValueError(f"tree() needs a positive number of lanes or chunks, not {count}")
    return Tree(kind="lanes" if lanes else "chunks", lanes=count, combine=combine, extra_depth=extra_depth)


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
        yield from _lane_steps(n, min(columns_of(n), n), contiguous=False)

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
        yield from _cascade_steps(n, lanes, registers)

    def stages_of(n: int) -> Stages:
        return stages_along(steps_of(n), n)

    def depth_of(n: int) -> int:
        stages = stages_of(n)
        return stages.updates + stages.merges

    return Tree(kind="custom", depth_of=depth_of, steps_of=steps_of, stages_of=stages_of)


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


def stages_along(steps: Iterable[Step], n: int) -> Stages:
    """Return the stages of a program on n leaves: the heights of its nodes, updates before merges."""
    counts = np.ones(n)
    updates, merges = np.zeros(n, dtype=np.intp), np.zeros(n, dtype=np.intp)
    imbalance = 1.0
    for step in steps:
        left, right = step.left, step.right
        updates[left] = np.maximum(updates[left] + step.update, updates[right])
        if not step.update:
            merges[left] = np.maximum(merges[left], merges[right]) + 1
            imbalance = max(imbalance, float((counts[right] / counts[left]).max()))
        elif merges[left].any():
            raise ValueError("an update after a merge has no stage")
        counts[left] += counts[right]
    return Stages(updates=int(updates.max()), merges=int(merges.max()), imbalance=imbalance)


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


def _lane_steps(n: int, lanes: int, *, contiguous: bool) -> Iterator[Step]:
    length = -(-n // lanes)
    for i in range(1, length):
        if contiguous:
            left = np.arange(0, n, length, dtype=np.intp)
            right = left + i
        else:
            left = np.arange(lanes, dtype=np.intp)
            right = left + i * lanes
        inside = right < n
        if contiguous:
            inside &= right < left + length
        yield Step(left=left[inside], right=right[inside], update=True)


def _cascade_steps(n: int, lanes: int, registers: int) -> Iterator[Step]:
    """Yield the steps of `torch_cascade`."""
    width, chunk = lanes * registers, 16
    vectors = n // width
    starts = np.arange(0, vectors, chunk, dtype=np.intp)
    within = np.arange(width, dtype=np.intp)
    for i in range(1, chunk):
        longer = starts[starts + i < vectors]
        left = (longer[:, None] * width + within).ravel()
        if len(left):
            yield Step(left=left, right=left + i * width, update=True)
    parts = [int(s) * width + within[r * lanes : (r + 1) * lanes] for s in starts for r in range(registers)]
    total: list[Step] = []
    heads = _cascade_merges(parts, registers, total)
    tail = np.arange(vectors * width, n, dtype=np.intp)
    yield from (Step(left=tail[:1], right=tail[i : i + 1], update=True) for i in range(1, len(tail)))
    yield from total
    rest = [] if heads is None else [heads[i : i + 1] for i in range(lanes)]
    nodes = [tail[:1], *rest] if len(tail) else rest
    yield from (Step(left=nodes[0], right=node, update=False) for node in nodes[1:])


def _cascade_merges(parts: list[Index], registers: int, merged: list[Step]) -> Index | None:
    """Append the merges of the chunks' moments to `merged`; return where the lanes' moments are."""
    chunks = len(parts) // registers
    depth = max((chunks - 1).bit_length(), 1)
    stack: list[Index | None] = [None] * depth

    def into(level: int, part: Index | None) -> None:
        own = stack[level]
        if own is None or part is None:
            stack[level] = part if own is None else own
        else:
            merged.append(Step(left=own, right=part, update=False))

    for i in range(chunks):
        for part in parts[i * registers : (i + 1) * registers]:
            into(0, part)
        level, mask = 1, i + 1
        while level < depth and mask % 2 == 0:
            into(level, stack[level - 1])
            stack[level - 1] = None
            level, mask = level + 1, mask // 2
    for level in range(1, depth):
        into(0, stack[level])
    return stack[0]


def _lane_heads(n: int, lanes: int, *, contiguous: bool) -> Index:
    heads = np.arange(lanes, dtype=np.intp)
    if not contiguous:
        return heads
    heads = heads * -(-n // lanes)
    return heads[heads < n]


def _far_halves(heads: Index) -> Iterator[Step]:
    """Combine at falling distance: with 8 lanes 0+4, 1+5, ...; then 0+2, 1+3; then 0+1."""
    while len(heads) > 1:
        distance = 1 << (len(heads) - 1).bit_length() - 1
        right = heads[distance:]
        yield Step(left=heads[: len(right)], right=right, update=False)
        heads = heads[:distance]


def _halves(heads: Index) -> Iterator[Step]:
    """Combine neighbours at growing distance: 0+1, 2+3, ...; then 0+2, ..."""
    while len(heads) > 1:
        right = heads[1::2]
        yield Step(left=heads[::2][: len(right)], right=right, update=False)
        heads = heads[::2]


def _imbalance(n: int, lanes: int, *, contiguous: bool) -> float:
    """Bound n_right / n_left over the merges of a butterfly, whichever partner is the left one.

    Lanes that hold between a and b elements make subtrees of equally many lanes that differ by b / a
    at most; lanes that are no power of two meet lanes - 1 others at worst, and an empty lane can make
    subtrees of any size (5 elements in 8 lanes: 4 against 1), so then only n - 1 is safe.
    """
    longest = -(-n // lanes)
    shortest = n - (lanes - 1) * longest if contiguous else n // lanes
    if shortest < 1:
        return float(max(n - 1, 1))
    return longest / shortest * (lanes - 1 if lanes & (lanes - 1) else 1)
