"""Terms that are shared: the same operation on the same terms is one row, however often it was recorded.

An edge is a term with a sign: 2 * term, plus 1 where the negative of the term is meant; -1 is absent.
"""

from __future__ import annotations

import numpy as np

from verifier.arithmetic.formats import Array
from verifier.arithmetic.graph.graph import Bits, Codes, Ids, ids
from verifier.arithmetic.graph.levels import reaching

Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
_MIXERS = np.array(
    [
        0x9E3779B97F4A7C15,
        0xBF58476D1CE4E5B9,
        0x94D049BB133111EB,
        0xD6E8FEB86659FD93,
        0xFF51AFD7ED558CCD,
    ],
    dtype=np.uint64,
)


_PART = 1 << 18
"""Terms that are entered at once, for the memory it takes."""


class SharedTerms:
    """A growing table of distinct terms. Graphs that are compared are brought into one table.

    Two terms are one exactly if their operation, their three edges and their value agree: keys only choose
    where to look, every row found is compared.
    """

    def __init__(self, room: int = 0) -> None:
        """Begin with no term. room: for so many terms nothing has to be moved."""
        self.names: list[str] = []
        self.count = 0
        self.operation = np.zeros(1024, dtype=np.int32)
        self.edges: Ids = np.full((1024, 3), -1, dtype=np.int64)
        self.value: Bits = np.zeros(1024, dtype=np.uint64)
        self.number: Array = np.full(1024, np.nan)
        """The magnitude of a constant, NaN for every other term."""
        self._codes: dict[str, int] = {}
        self._table = np.full(4096, -1, dtype=np.int32)
        self._valued = set[int]()
        """Operations of which any term has a value other than 0, perhaps."""
        self._unknowns = 0
        self._grow(room)

    def shared(self, name: str, edges: Ids, value: Bits | None = None) -> Ids:
        """Return the terms (m,) of one operation with edges (m, 3) and values (m,)."""
        code = self._code(name)
        values = np.zeros(len(edges), dtype=np.uint64) if value is None else value
        if value is not None:
            self._valued.add(code)
        self._grow(len(edges))
        keys = self._keys(code, edges, values)
        slot = keys & (len(self._table) - 1)
        found = self._held(np.arange(len(edges)), slot, code, edges, values)
        pending = np.flatnonzero(~self._same(found, code, edges, values))
        while pending.size:
            slot[pending] = self._next(slot[pending], keys[pending])
            held = self._held(pending, slot, code, edges, values)
            same = self._same(held, code, edges.take(pending, axis=0), values[pending])
            found[pending[same]] = held[same]
            pending = pending[~same]
        return found

    def _held(self, rows: Ids, slot: Ids, code: int, edges: Ids, values: Bits) -> Ids:
        """Return the terms in the slots of some rows; into those that are free a row is put."""
        held = self._table[slot[rows]]
        free = np.flatnonzero(held == -1)
        if free.size:
            self._insert(rows[free], slot, code, edges, values)
            held[free] = self._table[slot[rows[free]]]
        return held.astype(np.int64)

    def _same(self, terms: Ids, code: int, edges: Ids, values: Bits) -> Mask:
        """Return which terms are an operation on these edges (m, 3), with these values."""
        same: Mask = self.operation[terms] == code
        held = self.edges.take(terms, axis=0)
        if code in self._valued:
            same &= self.value[terms] == values
        for place in range(3):
            same &= held[:, place] == edges[:, place]
        return same

    def reaching(self, wanted: Ids) -> Mask:
        """Return which terms reach any of those wanted, these included, (terms + 1,): the last is of none."""
        edges = self.edges[: self.count]
        return reaching(np.where(edges < 0, -1, edges >> 1), wanted)

    def constants(self, numbers: Array) -> Ids:
        """Return the edges of numbers that are not NaN."""
        magnitude = np.abs(numbers)
        absent = np.full((len(numbers), 3), -1, dtype=np.int64)
        terms = self.shared("constant", absent, magnitude.view(np.uint64))
        self.number[terms] = magnitude
        return ids(2 * terms + np.signbit(numbers))

    def unknowns(self, count: int) -> Ids:
        """Return the edges of new terms that equal no other term."""
        self._grow(count)
        terms = np.arange(self.count, self.count + count)
        self.operation[terms], self.edges[terms] = self._code("unknown"), -1
        self.value[terms] = np.arange(self._unknowns, self._unknowns + count, dtype=np.uint64)
        self._unknowns, self.count = self._unknowns + count, self.count + count
        return ids(2 * terms)  # nobody looks for them

    def numbers(self, edges: Ids) -> Array:
        """Return the values of edges of constants, NaN for other edges."""
        magnitude = self.number[edges >> 1]
        signed: Array = np.where(edges & 1, -magnitude, magnitude)
        return signed

    def text(self, edge: int, depth: int = 3) -> str:
        """Return an edge as an expression of at most `depth` operations on a path."""
        term, sign = edge >> 1, "-" if edge & 1 else ""
        name, number = self.names[int(self.operation[term])], float(self.number[term])
        if not np.isnan(number):
            return f"{sign}{number!r}"
        below = [int(e) for e in self.edges[term] if e >= 0]
        if not below:
            return f"{sign}{name.removeprefix('input:')}[{int(self.value[term])}]"
        inside = ", ".join(self.text(e, depth - 1) for e in below) if depth else "..."
        return f"{sign}{name}({inside})"

    def _code(self, name: str) -> int:
        code = self._codes.setdefault(name, len(self._codes))
        if code == len(self.names):
            self.names.append(name)
        return code

    def _insert(self, rows: Ids, slot: Ids, code: int, edges: Ids, values: Bits) -> None:
        """Put one row into each free slot that rows ask for; the others find it there."""
        self._table[slot[rows]] = -2 - rows
        winners = rows[self._table[slot[rows]] == -2 - rows]
        place = slice(self.count, self.count + len(winners))
        self.operation[place], self.value[place] = code, values[winners]
        self.edges[place] = edges.take(winners, axis=0)
        self._table[slot[winners]] = np.arange(place.start, place.stop)
        self.count += len(winners)

    def _keys(self, code: int | Codes, edges: Ids, values: Bits) -> Ids:
        key = edges.view(np.uint64) @ _MIXERS[:3]
        key += np.asarray(code).astype(np.uint64) * _MIXERS[3] + values * _MIXERS[4]
        key ^= key >> np.uint64(32)
        key *= _MIXERS[0]
        key >>= np.uint64(20)
        return ids(key.view(np.int64))

    def _next(self, slot: Ids, keys: Ids) -> Ids:
        """Return the slots to look at next: keys that share one go on to different ones."""
        return (slot + (keys >> 20 | 1)) & (len(self._table) - 1)

    def _grow(self, more: int) -> None:
        """Make room for so many more terms."""
        need = self.count + more
        if need > len(self.operation):
            room = need + need // 4
            for name, fill in (("operation", 0), ("edges", -1), ("value", 0), ("number", np.nan)):
                self._lengthen(name, room, fill)
        if 4 * need > len(self._table):
            self._table = np.full(1 << (4 * need).bit_length(), -1, dtype=np.int32)
            for start in range(0, self.count, _PART):
                self._enter(np.arange(start, min(start + _PART, self.count)))

    def _enter(self, pending: Ids) -> None:
        """Enter terms into the table."""
        part = slice(pending[0], pending[-1] + 1)
        keys = self._keys(self.operation[part], self.edges[part], self.value[part])
        slot = keys & (len(self._table) - 1)
        while pending.size:
            held = self._table[slot]
            self._table[slot[held == -1]] = pending[held == -1]
            out = self._table[slot] != pending
            pending, keys = pending[out], keys[out]
            slot = self._next(slot[out], keys)

    def _lengthen(self, name: str, rows: int, fill: float) -> None:
        """Give a column so many rows; it is copied, which takes more memory, only if a view of it is held."""
        shape, held = getattr(self, name).shape, self.count
        try:
            getattr(self, name).resize((rows, *shape[1:]))  # no local name: numpy counts who holds it
        except ValueError:
            more = np.empty((rows - shape[0], *shape[1:]), dtype=getattr(self, name).dtype)
            setattr(self, name, np.concatenate([getattr(self, name), more]))
        getattr(self, name)[held:] = fill
