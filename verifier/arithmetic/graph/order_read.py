"""In which order compiled code sums given terms: the steps of its own additions, read off shared terms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.graph import Ids, distinct, ids
from verifier.arithmetic.graph.levels import levels_of
from verifier.arithmetic.graph.opcodes import UNORDERED_SUM
from verifier.arithmetic.graph.signs import Mask, reached
from verifier.arithmetic.graph.trees_read import misread
from verifier.arithmetic.trees.steps import Step
from verifier.arithmetic.trees.tree import pairwise


class Unordered(Step):
    """A step of a sum that is made in an order which is not known: it may come anywhere among the others."""


class OrderError(ValueError):
    """No term of the code is the sum of the terms asked for; why is looked for when it is told."""

    def __init__(self, why: str | Callable[[], str]) -> None:
        """Remember why, or how to find out."""
        super().__init__()
        self._why = why

    def __str__(self) -> str:
        """Say why."""
        if not isinstance(self._why, str):
            self._why = self._why()
        return self._why


_ADDED, _FUSED, _UNORDERED = _KINDS = range(3)
"""An addition; one into which a product is fused; one of a sum in an order that is not known."""


@dataclass(frozen=True, kw_only=True)
class _Partials:
    """Partial sums by their term, (terms,): how many terms each has, 0 for none; the place of the first.

    height: additions on a path. negative: its sign. left, right: the two that it joins. kind: how, `_KINDS`.
    """

    count: Ids
    head: Ids
    height: Ids
    negative: Ids
    left: Ids
    right: Ids
    kind: Ids


class OrderReader:
    """Reads the orders of sums off the terms that some outputs reach."""

    def __init__(
        self, terms: SharedTerms, outputs: Ids, line_of: Callable[[int], str] = lambda _: ""
    ) -> None:
        """Look among the additions that `outputs` reach; line_of: the place of an edge in the source."""
        self._terms, self._outputs, self._line_of = terms, outputs, line_of
        self._found: dict[bytes, list[Step] | OrderError] = {}
        self._roots: dict[bytes, int] = {}

    @cached_property
    def _live(self) -> Ids:
        return reached(self._terms, self._outputs)

    @cached_property
    def _rounds(self) -> list[tuple[Ids, Ids, bool]]:
        return self._additions(self._live)

    def _additions(self, live: Ids) -> list[tuple[Ids, Ids, bool]]:
        """Return additions (m,) and their edges (m, 3) in turn, operands first; last: whether they fuse."""
        adds = np.array([name.split(".")[0] in {"add", "fma"} for name in self._terms.names], dtype=np.bool_)
        return self._in_turn(live[adds[self._terms.operation[live]] | self._is_unordered(live)])

    def _is_unordered(self, terms: Ids) -> Mask:
        codes = [code for code, name in enumerate(self._terms.names) if name == UNORDERED_SUM]
        return np.isin(self._terms.operation[terms], codes)

    def _in_turn(self, additions: Ids) -> list[tuple[Ids, Ids, bool]]:
        edges, names = self._terms.edges.take(additions, axis=0), self._terms.names
        place = np.full(self._terms.count + 1, -1, dtype=np.int64)
        place[additions] = np.arange(len(additions))
        fused = np.array([name.startswith("fma") for name in names])[self._terms.operation[additions]]
        joined = place[np.where(edges < 0, self._terms.count, edges >> 1)]
        joined[fused, :2] = -1  # what is multiplied is a leaf, or this is no sum of leaves
        found = []
        for level in levels_of(joined):
            for fuses in (False, True):
                part = level[fused[level] == fuses]
                found += [(additions[part], edges.take(part, axis=0), fuses)] if part.size else []
        return found

    def steps(self, leaves: Ids) -> list[Step]:
        """Return the steps that sum these edges, each once; a product that is fused into a sum is an update.

        Raises:
            OrderError: no addition of the code sums exactly these.

        """
        if len(leaves) == 1:
            return []
        if not np.isnan(self._terms.numbers(leaves)).any():  # no data: any order is the code's
            return list(pairwise().steps(len(leaves)))
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

    def root(self, leaves: Ids) -> int:
        """Return the term that `steps` has found to be the sum of these edges; -1: none was looked for."""
        return int(leaves[0] >> 1) if len(leaves) == 1 else self._roots.get(leaves.tobytes(), -1)

    def _read(self, leaves: Ids) -> list[Step]:
        known = self._partials(leaves)
        roots = np.flatnonzero(known.count == len(leaves))
        steps = _steps(known, int(roots[0]), len(leaves)) if roots.size else None
        if steps is None:
            raise OrderError(partial(self._why, leaves))
        self._roots[leaves.tobytes()] = int(roots[0])
        return steps

    def _why(self, leaves: Ids) -> str:
        near = misread(self._terms, self._outputs, leaves)
        wanted = f"nothing sums the {len(leaves)} terms like {self._terms.text(int(leaves[0]), 4)}"
        return wanted if near is None else f"{wanted}: {near.text(self._terms, leaves, self._line_of)}"

    def _partials(self, leaves: Ids) -> _Partials:
        room = self._terms.count + 1  # the last is no term
        count, head, height, negative, left, right, kind = np.zeros((7, room), dtype=np.int64)
        leaf = leaves >> 1
        count[leaf], head[leaf], negative[leaf] = 1, np.arange(len(leaves)), leaves & 1
        factors, products = self._products(leaves)
        for additions, edges, fused in self._rounds:
            first, a = (edges[:, 2], edges[:, 2] >> 1) if fused else (edges[:, 0], edges[:, 0] >> 1)
            if fused:
                b = _found(factors, products, _pair(edges, room), missing=room - 1)
                sign = (edges[:, 0] ^ edges[:, 1]) & 1
            else:
                b, sign = edges[:, 1] >> 1, edges[:, 1] & 1
            fits = (count[additions] == 0) & (count[a] > 0) & (count[b] > 0)
            fits &= (negative[a] ^ (first & 1)) == (negative[b] ^ sign)
            terms, a, b = additions[fits], a[fits], b[fits]
            count[terms], head[terms] = count[a] + count[b], head[a]
            height[terms] = np.maximum(height[a], height[b]) + 1
            negative[terms] = negative[a] ^ (first[fits] & 1)
            left[terms], right[terms] = a, b
            kind[terms] = _FUSED if fused else np.where(self._is_unordered(terms), _UNORDERED, _ADDED)
        return _Partials(
            count=count, head=head, height=height, negative=negative, left=left, right=right, kind=kind
        )

    def _products(self, leaves: Ids) -> tuple[Ids, Ids]:
        """Return the pairs of factors of leaves that are products, in order, and these leaves."""
        terms = distinct(leaves >> 1)
        codes = [code for code, name in enumerate(self._terms.names) if name.startswith("mul.")]
        terms = terms[np.isin(self._terms.operation[terms], codes)]
        pairs = _pair(self._terms.edges.take(terms, axis=0), self._terms.count + 1)
        order = np.argsort(pairs, kind="stable")
        return pairs[order], terms[order]


def _found(keys: Ids, values: Ids, wanted: Ids, *, missing: int) -> Ids:
    """Return the value of each wanted key, of keys in order."""
    if not len(keys):
        return np.full(len(wanted), missing)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return ids(np.where(keys[at] == wanted, values[at], missing))


def _pair(edges: Ids, room: int) -> Ids:
    """Return one number for the two factors of a product, whatever their order and signs."""
    a, b = edges[:, 0] >> 1, edges[:, 1] >> 1
    return ids(np.minimum(a, b) * room + np.maximum(a, b))


class MaximumReader(OrderReader):
    """Reads the orders of maxima."""

    def _additions(self, live: Ids) -> list[tuple[Ids, Ids, bool]]:
        largest = [code for code, name in enumerate(self._terms.names) if name.startswith("max.")]
        return self._in_turn(live[np.isin(self._terms.operation[live], largest)])


def _steps(known: _Partials, root: int, count: int) -> list[Step] | None:
    """Return the additions below the root by height and kind, a step each; None: a term is met twice."""
    met, joins = [], []
    pending = np.array([root], dtype=np.int64)
    while pending.size:
        inner = pending[known.height[pending] > 0]
        met.append(known.head[pending[known.height[pending] == 0]])
        joins.append(inner)
        pending = np.concatenate([known.left[inner], known.right[inner]])
    if not np.array_equal(np.sort(np.concatenate(met)), np.arange(count)):
        return None
    inner = np.concatenate(joins)
    kinds = len(_KINDS) * known.height[inner] + known.kind[inner]
    return [
        (Unordered if kind % len(_KINDS) == _UNORDERED else Step)(
            left=_index(known.head[known.left[inner[kinds == kind]]]),
            right=_index(known.head[known.right[inner[kinds == kind]]]),
            update=kind % len(_KINDS) == _FUSED,
        )
        for kind in distinct(kinds).tolist()
    ]


def _index(places: Ids) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    found: np.ndarray[tuple[int], np.dtype[np.intp]] = np.array(places, dtype=np.intp)
    return found
