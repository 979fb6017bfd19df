"""In which orders compiled code merges the means of a row's parts: read off shared terms, one for each mean.

A step is `mean + (other - mean) * share`, share a constant, or `mean + (x - mean) / count`. What is found
proves nothing by itself: the variance algorithm is run along it and compared like all else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.graph import Ids, ids
from verifier.arithmetic.graph.levels import levels_of
from verifier.arithmetic.graph.order_read import OrderError
from verifier.arithmetic.graph.signs import reached
from verifier.arithmetic.trees.steps import Step

MOST_MEANS = 63
"""So many means of a row are told apart, a bit of a number for each."""
_Pair = frozenset[int]


@dataclass(frozen=True, kw_only=True)
class _Part:
    """The mean of a part: how many elements, the place of the first, merges on a path, and its sign."""

    count: int
    head: int
    height: int
    negative: int
    parts: tuple[int, int] = (-1, -1)
    update: bool = False


@dataclass(frozen=True, kw_only=True)
class Root:
    """A term that is the mean of all elements, and the order in which it is made."""

    term: int
    steps: tuple[Step, ...]


class MergeReader:
    """Reads merges off the terms that some outputs reach."""

    def __init__(self, terms: SharedTerms, outputs: Ids) -> None:
        """Look among what the edges `outputs` reach."""
        self._terms = terms
        self._found: dict[bytes, tuple[Root, ...] | OrderError] = {}
        self._live = reached(terms, outputs)

    @cached_property
    def _family(self) -> dict[int, str]:
        """The family of each live term."""
        families = [name.split(".")[0] for name in self._terms.names]
        return {
            int(term): families[code]
            for term, code in zip(self._live, self._terms.operation[self._live], strict=True)
        }

    def _pairs(self, *wanted: str) -> Iterator[tuple[_Pair, int]]:
        for term, family in self._family.items():
            if family in wanted:
                a, b = self._edges(term)[:2]
                yield frozenset({a >> 1, b >> 1}), term

    @cached_property
    def _products(self) -> frozenset[_Pair]:
        """The pairs of terms that are multiplied."""
        return frozenset(pair for pair, _ in self._pairs("mul", "fma"))

    @cached_property
    def _differences(self) -> dict[_Pair, int]:
        """The sums of two terms: x - mean among them, with which an update multiplies."""
        return dict(self._pairs("add"))

    def roots(self, leaves: Ids) -> tuple[Root, ...]:
        """Return each mean of the edges `leaves` that the code has.

        Raises:
            OrderError: it has none, or more than can be told apart.

        """
        key = leaves.tobytes()
        if key not in self._found:
            try:
                self._found[key] = self._read(leaves)
            except OrderError as error:
                self._found[key] = error
        found = self._found[key]
        if isinstance(found, OrderError):
            raise found
        return found

    def _read(self, leaves: Ids) -> tuple[Root, ...]:
        count = len(leaves)
        if count == 1:
            return (Root(term=int(leaves[0]) >> 1, steps=()),)
        known = self._partials(leaves)
        found = []
        for term, partial in known.items():
            steps = _steps(known, term, count) if partial.count == count else None
            if steps is not None:
                found.append(Root(term=term, steps=tuple(steps)))
        if not found:
            most = max((partial.count for partial in known.values()), default=1)
            text = self._terms.text(int(leaves[0]), 2)
            raise OrderError(f"no mean of all {count} elements like {text} is merged, of {most} at most")
        if len(found) > MOST_MEANS:
            raise OrderError(f"the code has {len(found)} means of one row")
        return tuple(found)

    def users(self, roots: tuple[Root, ...], edges: Ids) -> Ids:
        """Return for each edge a number that has a bit for each root that the edge reaches."""
        bits = np.zeros(self._terms.count + 1, dtype=np.int64)
        operands = self._terms.edges[: self._terms.count]
        operands = np.where(operands < 0, -1, operands >> 1)
        for level in levels_of(operands):
            bits[level] = np.bitwise_or.reduce(bits[operands[level]], axis=1)
            for number, root in enumerate(roots):
                at = level[level == root.term]
                bits[at] |= np.int64(1) << np.int64(number)
        return ids(bits[edges >> 1])

    def _edges(self, term: int) -> list[int]:
        return [int(edge) for edge in self._terms.edges[term]]

    def _partials(self, leaves: Ids) -> dict[int, _Part]:
        known = {
            int(edge) >> 1: _Part(count=1, head=place, height=0, negative=int(edge) & 1)
            for place, edge in enumerate(leaves)
        }
        for term, family in self._family.items():  # operands come before their uses
            if term in known or family not in {"add", "fma"}:
                continue
            found = next(self._merged(term, family, known), None)
            if found is not None:
                known[term] = found
        return known

    def _merged(self, term: int, family: str, known: dict[int, _Part]) -> Iterator[_Part]:
        """Yield as what merge of known means a term can be read."""
        for kept, difference, sign in self._readings(term, family):
            own = known.get(kept >> 1)
            if own is None or self._family.get(difference >> 1) != "add":
                continue
            turn = (sign ^ difference) & 1
            for u, v in self._both(difference >> 1):
                other = known.get(v >> 1)
                # other - own, up to the sign of the whole
                if u >> 1 != kept >> 1 or other is None or (u ^ own.negative ^ v ^ other.negative) & 1 == 0:
                    continue
                negative = (kept ^ own.negative) & 1
                if (v ^ other.negative ^ turn) & 1 != negative:
                    continue
                update = other.height == 0 and self._updates(term, v >> 1, difference >> 1)
                yield _Part(
                    count=own.count + other.count,
                    head=own.head,
                    height=max(own.height, other.height) + 1,
                    negative=negative,
                    parts=(kept >> 1, v >> 1),
                    update=update,
                )

    def _both(self, term: int) -> tuple[tuple[int, int], tuple[int, int]]:
        a, b = self._edges(term)[:2]
        return (a, b), (b, a)

    def _readings(self, term: int, family: str) -> Iterator[tuple[int, int, int]]:
        """Yield a term as kept edge plus an edge times a constant, and the sign of the product."""
        a, b, c = self._edges(term)
        if family == "fma":
            for difference, share in ((a, b), (b, a)):
                if self._constant(share):
                    yield c, difference, share & 1
            return
        for kept, product in ((a, b), (b, a)):
            if self._family.get(product >> 1) not in {"mul", "div"}:
                continue
            first, second = self._edges(product >> 1)[:2]
            for difference, share in ((first, second), (second, first)):
                if self._constant(share):
                    yield kept, difference, (product ^ share) & 1

    def _constant(self, edge: int) -> bool:
        return not np.isnan(float(self._terms.number[edge >> 1]))

    def _updates(self, mean: int, x: int, difference: int) -> bool:
        """Whether a step is an update: the difference before is multiplied with the one after."""
        after = self._differences.get(frozenset({mean, x}))
        return after is not None and frozenset({difference, after}) in self._products


def _steps(known: dict[int, _Part], root: int, count: int) -> list[Step] | None:
    """Return the merges below the root by height and kind, a step each; None: one is met twice."""
    levels: dict[tuple[int, bool], list[tuple[int, int]]] = defaultdict(list)
    pending, met = [root], []
    while pending:
        found = known[pending.pop()]
        if found.height == 0:
            met.append(found.head)
            continue
        a, b = (known[part] for part in found.parts)
        levels[found.height, found.update].append((a.head, b.head))
        pending.extend(found.parts)
    if sorted(met) != list(range(count)):
        return None
    return [
        Step(left=_index([a for a, _ in pairs]), right=_index([b for _, b in pairs]), update=update)
        for (_, update), pairs in sorted(levels.items())
    ]


def _index(places: list[int]) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    found: np.ndarray[tuple[int], np.dtype[np.intp]] = np.array(ids(places), dtype=np.intp)
    return found
