"""The exact order of a sum in one way of writing it: two orders are the same if and only if their texts are.

A part is named by the least place of its terms, 0 the first. The text has two parts for each addition, by how
many additions lie below it on the longest path, then by the first part. Which of the two comes first says
nothing of a sum; of a merge the first is the part whose mean is corrected. Of merges and online sums a third
number says whether the second part is an element that enters by an update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Literal

import numpy as np

from verifier.arithmetic.trees.steps import Step
from verifier.arithmetic.trees.tree import Tree, pairwise, sequential, tree

OrderKind = Literal["sum", "merges", "online"]
"""What an order is of: a sum; merges of means; an online sum, into which elements enter, too."""

WARP = 32
_MANY = 8
"""Additions of a step from which on they are looked at together."""
_HEIGHT, _FIRST, _SECOND, _UPDATE = range(4)
_Joins = np.ndarray[tuple[int, int], np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True)
class Order:
    """An order of n terms. joins: its additions (n - 1, 4): height, both parts, whether one is an update."""

    kind: OrderKind
    n: int
    joins: _Joins

    @property
    def text(self) -> str:
        """The order as text; of a sum it does not say which products are fused into it."""
        columns = [_FIRST, _SECOND] if self.kind == "sum" else [_FIRST, _SECOND, _UPDATE]
        return f"{self.kind} of {self.n}: {' '.join(map(str, self.joins[:, columns].ravel().tolist()))}"

    @property
    def sha256(self) -> str:
        """The digest of the text."""
        return sha256(self.text.encode()).hexdigest()

    @property
    def tree(self) -> str:
        """The call that declares a tree of which this is an order; "": none is known.

        Which part of a merge is corrected is left open, as where lanes are joined by halves.
        """
        if self.n < 2:
            return ""
        loose: OrderKind = "sum" if self.kind == "sum" else "online"
        mine = _sorted(self.joins.T.copy(), loose)
        for call in _candidates(mine, self.n):
            if any(np.array_equal(mine, other) for other in _orders(call, self.n, loose)):
                return _said(call)
        return ""


def order(steps: Sequence[Step], n: int, kind: OrderKind) -> Order:
    """Return the order that steps on n terms make."""
    pairs = sum(len(step.left) for step in steps)
    return Order(
        kind=kind, n=n, joins=_sorted((_in_turn if pairs < _MANY * len(steps) else _at_once)(steps, n), kind)
    )


_Call = tuple[tuple[str, int | str], ...]
"""The arguments of `tree`, by name; of trees without arguments ((name, 0),)."""


def _candidates(mine: _Joins, n: int) -> Iterator[_Call]:
    """Yield calls of which the first additions of the first term are those of an order."""
    depth = int(mine[-1, _HEIGHT])
    if depth == n - 1:
        yield (("sequential", 0),)
    if depth == (n - 1).bit_length():
        yield (("pairwise", 0),)
    ends = mine[mine[:, _FIRST] == 0]
    stride = int(ends[0, _SECOND])
    for lanes in dict.fromkeys((stride, n)):
        if lanes > 1:
            yield (("lanes", lanes),)
            yield from [(("lanes", lanes), ("warp", WARP))] if lanes > WARP else []
            yield (("lanes", lanes), ("combine", "sequential"))
    run = 1 + int((ends[:, _SECOND] == np.arange(1, len(ends) + 1)).cumprod().sum())
    for length in dict.fromkeys((run, run - 1)):
        if 1 < length < n:
            yield (("chunks", -(-n // length)),)
            yield (("chunks", -(-n // length)), ("combine", "sequential"))


def _said(call: _Call) -> str:
    (name, first), *_ = call
    return f"{name}()" if first == 0 else f"tree({', '.join(f'{word}={v!r}' for word, v in call)})"


def _made(call: _Call) -> Tree:
    given = dict(call)
    if "sequential" in given or "pairwise" in given:
        return sequential() if "sequential" in given else pairwise()
    lanes, chunks = (given.get(name) for name in ("lanes", "chunks"))
    return tree(
        lanes=None if lanes is None else int(lanes),
        chunks=None if chunks is None else int(chunks),
        combine="sequential" if "combine" in given else "butterfly",
        warp=int(given.get("warp", 0)),
    )


@lru_cache(maxsize=32)
def _orders(call: _Call, n: int, kind: OrderKind) -> tuple[_Joins, ...]:
    return tuple(order(steps, n, kind).joins for steps in _made(call).orders(n))


def _at_once(steps: Sequence[Step], n: int) -> _Joins:
    """Return the additions as columns, those of a step at once."""
    least, height = np.arange(n), np.zeros(n, dtype=np.int64)
    found, start = np.zeros((4, sum(len(step.left) for step in steps)), dtype=np.int64), 0
    for step in steps:
        to, end = step.left, start + len(step.left)
        first, second = least[to], least[step.right]
        high = np.maximum(height[to], height[step.right]) + 1
        found[:_UPDATE, start:end], found[_UPDATE, start:end] = (high, first, second), step.update
        least[to], height[to] = np.minimum(first, second), high
        start = end
    return found


def _in_turn(steps: Sequence[Step], n: int) -> _Joins:
    """Return the additions as columns, one after another: faster where a step has few."""
    least, height, found = list(range(n)), [0] * n, list[tuple[int, int, int, bool]]()
    for step in steps:
        for to, other in zip(step.left.tolist(), step.right.tolist(), strict=True):
            high = max(height[to], height[other]) + 1
            found.append((high, least[to], least[other], step.update))
            least[to], height[to] = min(least[to], least[other]), high
    return np.array(found, dtype=np.int64).reshape(-1, 4).T.copy()


def _sorted(found: _Joins, kind: OrderKind) -> _Joins:
    """Return additions, given as columns, as rows in order; parts are exchanged where that is nothing."""
    if kind == "sum":
        found[_UPDATE] = 0
    if kind != "merges":
        swapped = (found[_FIRST] > found[_SECOND]) & (found[_UPDATE] == 0)
        found[_FIRST:_UPDATE, swapped] = found[_FIRST:_UPDATE, swapped][::-1]
    return np.ascontiguousarray(found[:, np.lexsort((found[_FIRST], found[_HEIGHT]))].T)
