"""In which orders compiled code merges the means of a row's parts: read off shared terms, one for each mean.

A step is `mean + (other - mean) * share`, share a constant, or `mean + (x - mean) / count`. What is found
proves nothing by itself: the variance algorithm is run along it and compared like all else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.graph import Ids, distinct, ids
from verifier.arithmetic.graph.levels import levels_of
from verifier.arithmetic.graph.order_read import OrderError
from verifier.arithmetic.graph.signs import Mask, reached
from verifier.arithmetic.trees.steps import Step

MOST_MEANS = 63
"""So many means of a row are told apart, a bit of a number for each."""


@dataclass(frozen=True, kw_only=True)
class _Readings:
    """Terms read as kept + (u + v) * share, share a constant, u the term of `kept`, up to signs, (n,) each.

    kept, u, v: edges. difference: the term u + v. turn: the sign with which it is added.
    """

    term: Ids
    kept: Ids
    difference: Ids
    u: Ids
    v: Ids
    turn: Ids

    def __getitem__(self, which: Ids | Mask) -> _Readings:
        """Return some of them."""
        return _Readings(**{name: column[which] for name, column in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """Means of parts by their term, (terms,): how many elements, 0 for none; the place of the first.

    height: merges on a path. negative: its sign. own, other: the means that it merges. update: whether the
    other is an element that enters by Welford's update.
    """

    count: Ids
    head: Ids
    height: Ids
    negative: Ids
    own: Ids
    other: Ids
    update: Ids


@dataclass(frozen=True, kw_only=True)
class Root:
    """A term that is the mean of all elements, and the order in which it is made."""

    term: int
    steps: tuple[Step, ...]


class MergeReader:
    """Reads merges off the terms that some outputs reach."""

    def __init__(self, terms: SharedTerms, outputs: Ids) -> None:
        """Look among what the edges `outputs` reach."""
        self._terms, self._room = terms, terms.count + 1  # the last is no term
        self._found: dict[bytes, tuple[Root, ...] | OrderError] = {}
        self._users: dict[tuple[tuple[int, ...], bytes], Ids] = {}
        self.unlike: dict[tuple[int, int, bool], str] = {}
        """What orders lack of declared trees, by root, tree, and whether lanes keep means of their own."""
        self.live = reached(terms, outputs)
        """The terms that the outputs reach."""

    @cached_property
    def _place(self) -> Ids:
        """The place of each term among the live ones, -1 of all others."""
        place = np.full(self._room, -1, dtype=np.int64)
        place[self.live] = np.arange(len(self.live))
        return place

    @cached_property
    def _operands(self) -> Ids:
        """The places of the operands of live terms, -1 where absent."""
        edges = self._terms.edges[self.live]
        return ids(self._place[np.where(edges < 0, -1, edges >> 1)])

    @cached_property
    def _levels(self) -> list[Ids]:
        """The places of live terms, operands first."""
        return list(levels_of(self._operands))

    def _are(self, *families: str) -> Mask:
        """Return which terms are live and of some families, (terms,)."""
        codes = [code for code, name in enumerate(self._terms.names) if name.split(".")[0] in families]
        found = np.zeros(self._room, dtype=np.bool_)
        found[self.live] = np.isin(self._terms.operation[self.live], codes)
        return found

    def _pair(self, a: Ids, b: Ids) -> Ids:
        """Return one number for two terms, whatever their order."""
        return ids(np.minimum(a, b) * self._room + np.maximum(a, b))

    def _pairs(self, found: Mask) -> tuple[Ids, Ids]:
        """Return the pairs of operands of terms in order, each once, and the last term of each."""
        terms = np.flatnonzero(found)
        edges = self._terms.edges.take(terms, axis=0)
        pairs = self._pair(edges[:, 0] >> 1, edges[:, 1] >> 1)
        order = np.argsort(pairs, kind="stable")
        pairs, terms = pairs[order], terms[order]
        last = np.append(pairs[1:], -1) != pairs
        return pairs[last], terms[last]

    @cached_property
    def _products(self) -> Ids:
        """The pairs of terms that are multiplied, in order."""
        return self._pairs(self._are("mul", "fma"))[0]

    @cached_property
    def _differences(self) -> tuple[Ids, Ids]:
        """Pairs in order, and the sum of each: x - mean among them, with which an update multiplies."""
        return self._pairs(self._are("add"))

    @cached_property
    def _readings(self) -> list[_Readings]:
        """All readings, those of a level together, operands first."""
        found = list(self._read_as())
        columns = {name: [vars(part)[name] for part in found] for name in vars(found[0])}
        joined = _Readings(**{name: np.concatenate(parts) for name, parts in columns.items()})
        level = np.empty(len(self.live), dtype=np.int64)
        for number, places in enumerate(self._levels):
            level[places] = number
        of = level[self._place[joined.term]]
        order = np.argsort(of, kind="stable")
        ends = np.flatnonzero(np.diff(of[order])) + 1
        return [joined[part] for part in np.split(order, ends)]

    def _read_as(self) -> Iterator[_Readings]:
        """Yield each way of reading fused terms, and sums of products or quotients."""
        fused, sums = (np.flatnonzero(self._are(family)) for family in ("fma", "add"))
        parted = self._are("mul", "div")
        edges = self._terms.edges.take(fused, axis=0)
        for difference, share in ((0, 1), (1, 0)):
            yield from self._shares(fused, edges[:, 2], edges[:, difference], edges[:, share])
        edges = self._terms.edges.take(sums, axis=0)
        for kept, product in ((0, 1), (1, 0)):
            right = parted[edges[:, product] >> 1]
            outer = edges.compress(right, axis=0)
            factors = self._terms.edges[outer[:, product] >> 1]
            sign = outer[:, product] & 1
            for difference, share in ((0, 1), (1, 0)):
                yield from self._shares(
                    sums[right], outer[:, kept], factors[:, difference] ^ sign, factors[:, share]
                )

    def _shares(self, term: Ids, kept: Ids, difference: Ids, share: Ids) -> Iterator[_Readings]:
        """Yield kept + difference * share where share is a constant, the difference one of kept's term."""
        right = ~np.isnan(self._terms.number[share >> 1]) & self._are("add")[difference >> 1]
        ends = self._terms.edges.take(difference >> 1, axis=0)
        for u, v in ((ends[:, 0], ends[:, 1]), (ends[:, 1], ends[:, 0])):
            found = _Readings(
                term=term, kept=kept, difference=difference >> 1, u=u, v=v, turn=(share ^ difference) & 1
            )
            yield found[right & (u >> 1 == kept >> 1)]

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
        known = self._parts(leaves)
        found = []
        for term in np.flatnonzero(known.count == count).tolist():
            steps = _steps(known, term, count)
            if steps is not None:
                found.append(Root(term=term, steps=tuple(steps)))
        if not found:
            most, text = known.count.max(), self._terms.text(int(leaves[0]), 2)
            raise OrderError(f"no mean of all {count} elements like {text} is merged, of {most} at most")
        if len(found) > MOST_MEANS:
            raise OrderError(f"the code has {len(found)} means of one row")
        return tuple(found)

    def users(self, roots: tuple[Root, ...], edges: Ids) -> Ids:
        """Return for each edge a number that has a bit for each root that the edge reaches."""
        key = tuple(root.term for root in roots), edges.tobytes()
        if key not in self._users:
            bits = np.zeros(len(self.live) + 1, dtype=np.int64)
            bits[self._place[list(key[0])]] = np.int64(1) << np.arange(len(roots))
            for level in self._levels:
                for place in range(3):
                    bits[level] |= bits[self._operands[level, place]]
            self._users[key] = ids(bits[self._place[edges >> 1]])
        return self._users[key]

    def _parts(self, leaves: Ids) -> _Parts:
        columns = np.zeros((len(fields(_Parts)), self._room), dtype=np.int64)
        known = _Parts(**{one.name: column for one, column in zip(fields(_Parts), columns, strict=True)})
        places = np.flatnonzero(leaves >> 1 < self._room - 1)  # the code does not have those formed later
        met = leaves[places] >> 1
        known.count[met], known.head[met], known.negative[met] = 1, places, leaves[places] & 1
        for readings in self._readings:
            self._merge(known, readings[known.count[readings.term] == 0])
        return known

    def _merge(self, known: _Parts, read: _Readings) -> None:
        """Note the terms of a level that merge means which are known, each by its first reading."""
        own, other = read.kept >> 1, read.v >> 1
        negative = (read.kept ^ known.negative[own]) & 1
        signs = known.negative[own], known.negative[other]
        right = (known.count[own] > 0) & (known.count[other] > 0)
        # other - own, up to the sign of the whole
        right &= (read.u ^ signs[0] ^ read.v ^ signs[1]) & 1 == 1
        right &= (read.v ^ signs[1] ^ read.turn) & 1 == negative
        _, first = np.unique(read.term[right], return_index=True)
        which = np.flatnonzero(right)[first]
        read, own, other = read[which], own[which], other[which]
        known.count[read.term] = known.count[own] + known.count[other]
        known.head[read.term], known.negative[read.term] = known.head[own], negative[which]
        known.height[read.term] = np.maximum(known.height[own], known.height[other]) + 1
        known.own[read.term], known.other[read.term] = own, other
        known.update[read.term] = (known.height[other] == 0) & self._updates(read, other)

    def _updates(self, read: _Readings, x: Ids) -> Mask:
        """Return which steps are updates: the difference before is multiplied with the one after."""
        pairs, sums = self._differences
        after, known = _found(pairs, self._pair(read.term, x))
        if not known.any():
            return known
        _, multiplied = _found(self._products, self._pair(read.difference, sums[after]))
        return known & multiplied


def _found(keys: Ids, wanted: Ids) -> tuple[Ids, Mask]:
    """Return where each wanted key is among keys in order, and whether it is."""
    at = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    return ids(at), np.asarray(keys[at] == wanted if len(keys) else np.zeros(len(wanted), np.bool_))


def _steps(known: _Parts, root: int, count: int) -> list[Step] | None:
    """Return the merges below the root by height and kind, a step each; None: one is met twice."""
    met, joins = [], []
    pending = np.array([root], dtype=np.int64)
    while pending.size:
        inner = pending[known.height[pending] > 0]
        met.append(known.head[pending[known.height[pending] == 0]])
        joins.append(inner)
        pending = np.concatenate([known.own[inner], known.other[inner]])
        if sum(map(len, met)) > count:
            return None
    if not np.array_equal(np.sort(np.concatenate(met)), np.arange(count)):
        return None
    inner = np.concatenate(joins)
    kinds = 2 * known.height[inner] + known.update[inner]
    return [
        Step(
            left=_index(known.head[known.own[inner[kinds == kind]]]),
            right=_index(known.head[known.other[inner[kinds == kind]]]),
            update=bool(kind % 2),
        )
        for kind in distinct(kinds).tolist()
    ]


def _index(places: Ids) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    found: np.ndarray[tuple[int], np.dtype[np.intp]] = np.array(places, dtype=np.intp)
    return found
