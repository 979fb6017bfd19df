"""In which order compiled code sums given terms: the steps of its own additions, read off shared terms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.graph import Ids, ids
from verifier.arithmetic.graph.signs import reached
from verifier.arithmetic.graph.trees_read import misread
from verifier.arithmetic.trees.steps import Step


class OrderError(ValueError):
    """No term of the code is the sum of the terms asked for."""


@dataclass(frozen=True, kw_only=True)
class _Partial:
    """A partial sum: how many terms it has, the place of the first, additions on a path, and its sign."""

    count: int
    head: int
    height: int
    negative: int
    parts: tuple[int, int] = (-1, -1)
    update: bool = False


class OrderReader:
    """Reads the orders of sums off the terms that some outputs reach."""

    def __init__(
        self, terms: SharedTerms, outputs: Ids, line_of: Callable[[int], str] = lambda _: ""
    ) -> None:
        """Look among the additions that `outputs` reach; line_of: the place of an edge in the source."""
        self._terms, self._outputs, self._line_of = terms, outputs, line_of
        live = reached(terms, outputs)
        families = np.array([name.split(".")[0] for name in terms.names], dtype=np.str_)
        family = families[terms.operation[live]]
        self._additions = [
            (int(term), tuple(map(int, terms.edges[term])), bool(fused))
            for term, fused in zip(live, family == "fma", strict=True)
            if fused or family[np.searchsorted(live, term)] == "add"
        ]

    def steps(self, leaves: Ids) -> list[Step]:
        """Return the steps that sum these edges, each once; a product that is fused into a sum is an update.

        Raises:
            OrderError: no addition of the code sums exactly these.

        """
        if len(leaves) == 1:
            return []
        known = self._partials(leaves)
        root = next((term for term, found in known.items() if found.count == len(leaves)), None)
        if root is None:
            raise OrderError(self._why(leaves))
        steps = _steps(known, root, len(leaves))
        if steps is None:
            raise OrderError(self._why(leaves))
        return steps

    def _why(self, leaves: Ids) -> str:
        near = misread(self._terms, self._outputs, leaves)
        wanted = f"nothing sums the {len(leaves)} terms like {self._terms.text(int(leaves[0]), 4)}"
        return wanted if near is None else f"{wanted}: {near.text(self._terms, leaves, self._line_of)}"

    def _partials(self, leaves: Ids) -> dict[int, _Partial]:
        known = {
            int(edge) >> 1: _Partial(count=1, head=place, height=0, negative=int(edge) & 1)
            for place, edge in enumerate(leaves)
        }
        products = self._products(leaves)
        for term, (first, second, third), fused in self._additions:
            if term in known:
                continue
            if not fused:
                a, b = known.get(first >> 1), known.get(second >> 1)
                parts, signs = (first >> 1, second >> 1), (first & 1, second & 1)
            else:
                leaf = products.get((min(first >> 1, second >> 1), max(first >> 1, second >> 1)), -1)
                a, b = known.get(third >> 1), known.get(leaf)
                parts, signs = (third >> 1, leaf), (third & 1, (first ^ second) & 1)
            if a is None or b is None or (a.negative ^ signs[0]) != (b.negative ^ signs[1]):
                continue
            known[term] = _Partial(
                count=a.count + b.count,
                head=a.head,
                height=max(a.height, b.height) + 1,
                negative=a.negative ^ signs[0],
                parts=parts,
                update=fused,
            )
        return known

    def _products(self, leaves: Ids) -> dict[tuple[int, int], int]:
        """Return the leaves that are products, by their factors."""
        found = {}
        for term in np.unique(leaves >> 1):
            if self._terms.names[int(self._terms.operation[term])].startswith("mul."):
                a, b = (int(edge) >> 1 for edge in self._terms.edges[term][:2])
                found[min(a, b), max(a, b)] = int(term)
        return found


class MaximumReader(OrderReader):
    """Reads the orders of maxima."""

    def __init__(self, terms: SharedTerms, outputs: Ids) -> None:
        """Look among the maxima that the edges `outputs` reach."""
        super().__init__(terms, outputs)
        largest = [code for code, name in enumerate(terms.names) if name.startswith("max.")]
        live = reached(terms, outputs)
        found = live[np.isin(terms.operation[live], largest)]
        self._additions = [(int(term), tuple(map(int, terms.edges[term])), False) for term in found]


def _steps(known: dict[int, _Partial], root: int, count: int) -> list[Step] | None:
    """Return the additions below the root by height and kind, a step each; None: a term is met twice."""
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
