"""How compiled code finds a row's maximum and its sum of exponentials together: read off shared terms.

A part of a row has a maximum m and a sum of exp(x - m). Parts are rescaled to a larger maximum and added:
two at once, many at once, or one element to a part by a choice (x > m: the sum is rescaled, and 1 added).
What is found proves nothing by itself: the computation is run along it and compared like all else.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from verifier.arithmetic.graph.graph import Ids
from verifier.arithmetic.graph.order_read import MaximumReader, OrderError
from verifier.arithmetic.trees.steps import Numbering, Step


@dataclass(frozen=True, kw_only=True)
class Join:
    """Parts that are rescaled to the largest of their maxima and summed, in an order of its own.

    parts: places of their first elements; the sum lies at the first. asks: whether a part is rescaled only
    where its sum is above zero.
    """

    parts: Numbering
    asks: bool = False


Rescalings = tuple[Step | Join, ...]
"""Of a step that is an update the right is one element, added by a choice; of any other both are parts."""


@dataclass(frozen=True, kw_only=True)
class _Inner:
    """A part made of others: their terms, and how."""

    below: tuple[int, ...]
    kind: str
    asks: bool = False


class OnlineReader(MaximumReader):
    """Reads the orders of online sums off the terms that some outputs reach."""

    def rescalings(self, leaves: Ids) -> Rescalings:
        """Return how the elements (n,) of a row become one part.

        Raises:
            OrderError: the code has no maximum of them, or a part of it is nowhere rescaled.

        """
        if len(leaves) == 1:
            return ()
        self.steps(leaves)
        known = self._partials(leaves)
        root = int(np.flatnonzero(known.count == len(leaves))[0])
        inner, order, pending = dict[int, _Inner](), list[int](), [root]
        while pending:
            term = pending.pop()
            if known.height[term] == 0:
                continue
            inner[term] = self._inner(term, known.left, known.right, known.height)
            order.append(term)
            pending.extend(inner[term].below)
        return self._in_levels(inner, order[::-1], known.head)

    def _inner(self, term: int, left: Ids, right: Ids, height: Ids) -> _Inner:
        """Return of which parts a part is made: those that are rescaled to its maximum."""
        a, b = int(left[term]), int(right[term])
        for held, x in ((a, b), (b, a)):
            if height[x] == 0 and (x, held) in self._asked:
                return _Inner(below=(held, x), kind="update")
        found, asks, pending = list[int](), False, [b, a]
        while pending:
            part = pending.pop()
            guarded = self._guarded(part, term)
            if guarded or self._apart(part, term):
                found.append(part)
                asks |= guarded
            elif height[part] == 0:
                raise OrderError(f"{self._terms.text(2 * part)} is not rescaled to the maximum of its part")
            else:
                pending += [int(right[part]), int(left[part])]
        pair = len(found) == 2 and not asks
        return _Inner(below=tuple(found), kind="pair" if pair else "join", asks=asks)

    def _in_levels(self, inner: dict[int, _Inner], order: list[int], head: Ids) -> Rescalings:
        """Return the parts, those within others first, as steps; order: terms, those below first."""
        place, level = dict[int, int](), dict[int, int]()
        pairs: dict[tuple[int, bool], list[tuple[int, int]]] = defaultdict(list)
        joins: dict[int, list[Join]] = defaultdict(list)
        for term in order:
            how = inner[term]
            places = [place.get(part, int(head[part])) for part in how.below]
            place[term] = places[0]
            level[term] = 1 + max(level.get(part, 0) for part in how.below)
            if how.kind == "join":
                joins[level[term]].append(Join(parts=np.array(places, dtype=np.intp), asks=how.asks))
            else:
                pairs[level[term], how.kind == "update"].append((places[0], places[1]))
        found: list[Step | Join] = []
        for height in range(1, max(level.values()) + 1):
            for update in (True, False):
                if of_level := pairs.get((height, update)):
                    a, b = np.array(of_level, dtype=np.intp).T
                    found.append(Step(left=a, right=b, update=update))
            found += joins.get(height, [])
        return tuple(found)

    @cached_property
    def _differences(self) -> frozenset[tuple[int, int]]:
        """The pairs of terms of which one is subtracted from the other, the smaller number first."""
        edges = self._edges_of("add")
        edges = edges[((edges[:, 0] ^ edges[:, 1]) & 1) == 1][:, :2] >> 1
        return frozenset(zip(edges.min(axis=1).tolist(), edges.max(axis=1).tolist(), strict=True))

    @cached_property
    def _asked(self) -> frozenset[tuple[int, int]]:
        """The pairs x, m of terms of which the code asks whether x - m is above zero."""
        found = set[tuple[int, int]]()
        for difference, bound, _ in self._edges_of("setp.gt").tolist():
            if self._terms.number[bound >> 1] != 0.0 or self._family(difference >> 1) != "add":
                continue
            parts = [int(part) ^ (difference & 1) for part in self._terms.edges[difference >> 1][:2]]
            x, m = sorted(parts, key=lambda part: part & 1)
            if not x & 1 and m & 1:
                found.add((x >> 1, m >> 1))
        return frozenset(found)

    @cached_property
    def _choices(self) -> dict[tuple[int, int], int]:
        """The choices between two terms, by these."""
        codes = [code for code, name in enumerate(self._terms.names) if name == "ite"]
        terms = self._live[np.isin(self._terms.operation[self._live], codes)]
        edges = self._terms.edges.take(terms, axis=0)
        plain = ((edges[:, 1] | edges[:, 2]) & 1) == 0
        pairs = (edges[plain, 1:] >> 1).tolist()
        return {(a, b): int(term) for (a, b), term in zip(pairs, terms[plain], strict=True)}

    def _edges_of(self, family: str) -> Ids:
        codes = [code for code, name in enumerate(self._terms.names) if name.rpartition(".")[0] == family]
        return self._terms.edges[self._live[np.isin(self._terms.operation[self._live], codes)]]

    def _family(self, term: int) -> str:
        return self._terms.names[int(self._terms.operation[term])].rpartition(".")[0]

    def _apart(self, one: int, other: int) -> bool:
        return (min(one, other), max(one, other)) in self._differences

    def _guarded(self, part: int, largest: int) -> bool:
        """Whether a choice between a maximum and a larger one is subtracted from the larger one."""
        chosen = self._choices.get((part, largest))
        return chosen is not None and self._apart(chosen, largest)
