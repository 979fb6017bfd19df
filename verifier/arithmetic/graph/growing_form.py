"""The normal form of a graph that is still being built: what is appended is formed when it is asked for.

Several computations that have most of their operations in common are built by one `SharingBuilder`: what one
of them has appended is there for the next, in its normal form.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from verifier.arithmetic.graph.graph import Bits, Builder, Ids, distinct, ids
from verifier.arithmetic.graph.levels import levels_of
from verifier.arithmetic.graph.normal_form import Normaliser

_Array = tuple[tuple[int, ...], bytes]


class SharingBuilder(Builder):
    """A builder that gives the nodes it has where it is asked for the same operation on the same arrays."""

    def __init__(self) -> None:
        """Begin with no node."""
        super().__init__()
        self._known: dict[tuple[str, str, _Array, tuple[_Array, ...]], tuple[int, tuple[int, ...]]] = {}

    def append(self, name: str, *operands: object, value: object = 0, line: str = "") -> Ids:
        """Append nodes as `Builder` does, or return those that were appended for the same."""
        given = tuple(map(ids, operands))
        values = np.asarray(value, dtype=np.uint64)
        key = (name, line, _bytes(values), tuple(map(_bytes, given)))
        if key not in self._known:
            made = super().append(name, *given, value=values, line=line)
            self._known[key] = len(self) - made.size, made.shape
        first, shape = self._known[key]
        return first + np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)


def _bytes(values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> _Array:
    return values.shape, values.tobytes()


class GrowingForm:
    """The edges of a builder's nodes, in the table and by the claims of a normaliser."""

    def __init__(self, builder: Builder, normaliser: Normaliser, formats: Mapping[str, str]) -> None:
        """Form nothing yet; formats: those that the elements of arguments are held in."""
        self.builder, self._normaliser, self._formats = builder, normaliser, formats
        self._seen = self._count = 0
        self._operation = np.zeros(1, dtype=np.int64)
        self._operands: Ids = np.full((1, 3), -1, dtype=np.int64)
        self._value: Bits = np.zeros(1, dtype=np.uint64)
        # The last place is that of operands that are absent.
        self._edges, self._held = np.full((2, 1), -1, dtype=np.int64)

    def edges(self, nodes: Ids) -> Ids:
        """Return the edges of nodes of the builder."""
        self._catch_up()
        names, wanted = self.builder.names(), self._unformed(nodes)
        place = np.full(len(self._edges), -1, dtype=np.int64)
        place[wanted] = np.arange(len(wanted))
        for level in levels_of(place[self._operands.take(wanted, axis=0)]):
            at = wanted[level]
            operations = self._operation[at]
            for code in distinct(operations).tolist():
                these = at[operations == code]
                below = self._operands.take(these, axis=0)
                self._edges[these], self._held[these] = self._normaliser.nodes(
                    names[code], below, self._value[these], self._edges[below], self._held[below],
                    self._formats,
                )  # fmt: skip
        return ids(self._edges[nodes])

    @property
    def depends_on_order(self) -> bool:
        """Whether what was formed first may have decided what became of what came later."""
        return self._normaliser.asked

    def _catch_up(self) -> None:
        """Take in what has been appended."""
        count = len(self.builder)
        if count >= len(self._edges):
            more = 2 * count - len(self._edges)
            self._operation = np.concatenate([self._operation, np.zeros(more, dtype=np.int64)])
            self._operands = np.concatenate([self._operands, np.full((more, 3), -1, dtype=np.int64)])
            self._value = np.concatenate([self._value, np.zeros(more, dtype=np.uint64)])
            self._edges, self._held = (
                np.append(column, np.full(more, -1, dtype=np.int64)) for column in (self._edges, self._held)
            )
        for operation, operands, value, _ in self.builder.rows(self._seen):
            place = slice(self._count, self._count + len(value))
            self._operation[place], self._operands[place], self._value[place] = operation, operands, value
            self._seen, self._count = self._seen + 1, place.stop

    def _unformed(self, nodes: Ids) -> Ids:
        """Return what nodes reach that has no edge yet, in order."""
        found = np.zeros(len(self._edges), dtype=np.bool_)
        frontier = distinct(ids(nodes).ravel())
        frontier = frontier[self._edges[frontier] < 0]
        while frontier.size:
            found[frontier] = True
            below = self._operands.take(frontier, axis=0).ravel()
            below = below[(below >= 0) & (self._edges[below] < 0)]
            frontier = distinct(below[~found[below]])
        return np.flatnonzero(found)
