"""The steps of reduction trees: disjoint pairs of nodes, one step after another, and their stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

Numbering = np.ndarray[tuple[int], np.dtype[np.intp]]


@dataclass(frozen=True, kw_only=True)
class Step:
    """Disjoint pairs that are combined at once; `right` are single leaves where `update` is true."""

    left: Numbering
    right: Numbering
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


def lane_steps(n: int, lanes: int, *, contiguous: bool) -> Iterator[Step]:
    """Yield the steps within lanes, which take the elements in turn or, contiguous, in chunks."""
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


def cascade_steps(n: int, lanes: int, registers: int) -> Iterator[Step]:
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


def _cascade_merges(parts: list[Numbering], registers: int, merged: list[Step]) -> Numbering | None:
    """Append the merges of the chunks' moments to `merged`; return where the lanes' moments are."""
    chunks = len(parts) // registers
    depth = max((chunks - 1).bit_length(), 1)
    stack: list[Numbering | None] = [None] * depth

    def into(level: int, part: Numbering | None) -> None:
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


def lane_heads(n: int, lanes: int, *, contiguous: bool) -> Numbering:
    """Return the first element of each lane, where its result is."""
    heads = np.arange(lanes, dtype=np.intp)
    if not contiguous:
        return heads
    heads = heads * -(-n // lanes)
    return heads[heads < n]


def far_halves(heads: Numbering) -> Iterator[Step]:
    """Yield the steps that combine at falling distance: of 8 lanes 0+4, 1+5, ...; then 0+2, 1+3; then 0+1."""
    while len(heads) > 1:
        distance = 1 << (len(heads) - 1).bit_length() - 1
        right = heads[distance:]
        yield Step(left=heads[: len(right)], right=right, update=False)
        heads = heads[:distance]


def warps_first(heads: Numbering, warp: int) -> Iterator[list[Step]]:
    """Yield orders that combine the lanes of a warp at falling distance, then warps: far ones first, or near.

    Triton's reductions over the threads of a block do the one or the other.
    """
    groups = [heads[start : start + warp] for start in range(0, len(heads), warp)]
    within = [step for group in groups for step in far_halves(group)]
    firsts = heads[::warp]
    yield [*within, *far_halves(firsts)]
    yield [*within, *halves(firsts)]


def halves(heads: Numbering) -> Iterator[Step]:
    """Yield the steps that combine neighbours at growing distance: 0+1, 2+3, ...; then 0+2, ..."""
    while len(heads) > 1:
        right = heads[1::2]
        yield Step(left=heads[::2][: len(right)], right=right, update=False)
        heads = heads[::2]


def imbalance(n: int, lanes: int, *, contiguous: bool) -> float:
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
