"""The expressions of a recording with each distinct one once, as many threads compute the same.

Equal operations on equal operands give equal bits, so that nothing is lost. How often each was computed is
kept.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from hashlib import sha256
from operator import attrgetter

import numpy as np

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.graph import Bits, Codes, Graph, Ids, distinct, ids
from verifier.arithmetic.graph.opcodes import UNORDERED_SUM
from verifier.machine.shadow.graph_nodes import MOST_OPERANDS, Nodes, Row

Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
_NONE: Ids = np.zeros(0, dtype=np.int64)
_PART = 1 << 22
_DEEP = (3, 6)
"""Operations that are looked into below a node where copies of it are compared: nearly all need three."""
_COMMUTE = frozenset({"add", "mul"})
_TOGETHER = 1 << 16
"""Nodes of alike rows that are taken together."""
_UNLIKE = 8
"""Times the size of the smallest part that the largest may have, where all are looked through at once."""


def live(nodes: Nodes, outputs: Mapping[str, Ids]) -> Mask:
    """Return which nodes outputs reach, (count,)."""
    kept = np.zeros(nodes.count, dtype=np.bool_)
    for wanted in outputs.values():
        kept[wanted] = True
    for row in reversed(nodes.rows):
        mine = kept[row.first : row.first + row.count]
        if mine.all():
            for column in _operands(row):
                kept[column] = True
        elif mine.any():
            for column in _operands(row):
                kept[column[mine]] = True
    return kept


def shared(
    nodes: Nodes,
    parts: Sequence[tuple[Mask, Mapping[str, Ids]]],
    formats: Mapping[str, str],
    several: Ids = _NONE,
) -> tuple[Graph, ...]:
    """Return for each part the graph of the nodes that it keeps, each distinct expression once.

    parts: the nodes to keep, which have all their operands among them, and the outputs among them. What is
    unknown, or summed in an order that is not known, equals nothing else: each is kept. Parts of like sizes
    are looked through at once, since they have much in common; that takes more memory.
    several: nodes in whose place another number may stay (`Graph`).
    """
    sizes = [np.count_nonzero(kept) for kept, _ in parts]
    alike = max(sizes) <= _UNLIKE * min(sizes)
    together = [parts] if alike else [[part] for part in parts]
    return tuple(graph for group in together for graph in _shared(nodes, group, formats, several))


def _shared(
    nodes: Nodes, parts: Sequence[tuple[Mask, Mapping[str, Ids]]], formats: Mapping[str, str], several: Ids
) -> Iterator[Graph]:
    """Yield the graph of each part, of which all are looked through at once."""
    terms, place = SharedTerms(), np.full(nodes.count, -1, dtype=_numbers(nodes))
    rows = list(_rows(nodes, reduce(np.logical_or, (kept for kept, _ in parts))))
    for alike in _alike(nodes, rows):
        name = _name(alike[0][0])
        numbers = np.concatenate([row.first + np.flatnonzero(mine) for row, mine in alike])
        each = [[column[mine] for column in _operands(row)] for row, mine in alike]
        operands = [place[np.concatenate(column)] for column in zip(*each, strict=True)]
        values = [value for row, mine in alike if (value := _value(row, mine)) is not None]
        value = numbers.astype(np.uint64) if _apart(name) else np.concatenate(values) if values else None
        place[numbers] = _found(terms, name, len(numbers), operands, value)
    places = tuple(dict.fromkeys(("", *(row.line for row in nodes.rows))))
    line_of = {where: code for code, where in enumerate(places)}
    lines = [np.zeros(terms.count, dtype=np.int32) for _ in parts]
    for row, _ in rows:
        if not row.line:
            continue
        those, end = place[row.first : row.first + row.count], row.first + row.count
        for (kept, _), line in zip(parts, lines, strict=True):
            own = those[kept[row.first : end]]
            line[own[line[own] == 0]] = line_of[row.line]
    names = _names(nodes)
    code = np.array([names.index(name) for name in terms.names], dtype=np.int32)
    apart = np.array([_apart(name) for name in terms.names], dtype=np.bool_)
    operation = terms.operation[: terms.count]
    whole = Graph(
        names=names,
        operation=code[operation],
        operands=terms.edges[: terms.count],
        value=np.where(apart[operation], np.uint64(0), terms.value[: terms.count]),
        line=np.zeros(terms.count, dtype=np.int32),  # each part has its own
        lines=places,
        outputs={},
        formats=formats,
    )
    del terms  # what it takes to find a term, which are many
    for (kept, outputs), line in zip(parts, lines, strict=True):
        yield _part(whole, line, place, kept, outputs, several[kept[several]])


def _alike(nodes: Nodes, rows: Sequence[tuple[Row, Mask]]) -> Iterator[list[tuple[Row, Mask]]]:
    """Yield rows of one operation whose operands all lie in rows that came before, as they are or together.

    What lanes compute by one instruction is a row: loops that are written out have many that are alike. Few
    have so many nodes that it saves nothing to take them together, and costs memory.
    """
    depth = np.zeros(nodes.count, dtype=np.int32)
    groups: dict[tuple[int, str, int, bool], list[tuple[Row, Mask]]] = {}
    for row, mine in rows:
        below = [int(depth[column[mine]].max(initial=0)) for column in _operands(row)]
        own = max(below, default=-1) + 1
        depth[row.first : row.first + row.count] = own
        groups.setdefault((own, _name(row), len(below), row.value is None), []).append((row, mine))
    for key in sorted(groups, key=lambda key: key[0]):
        taken, count = list[tuple[Row, Mask]](), 0
        for row, mine in groups[key]:
            if taken and count + row.count > _TOGETHER:
                yield taken
                taken, count = [], 0
            taken.append((row, mine))
            count += row.count
        yield taken


def commuted(nodes: Nodes, first: Ids, second: Ids, *, fused: bool = False) -> Mask:
    """Return which pairs are the same but for the order of two operands, as far as a few levels tell.

    What lies deeper is compared by node: lanes that sum by a butterfly end with the same nodes. fused: of a
    sum of two products either may be the one that is fused.
    """
    same = np.zeros(len(first), dtype=np.bool_)
    for levels in _DEEP:
        left = np.flatnonzero(~same)
        same[left] = _commuted(nodes, first[left], second[left], levels, fused=fused)
    return same


def _commuted(nodes: Nodes, first: Ids, second: Ids, levels: int, *, fused: bool) -> Mask:
    """Return which pairs are the same but for the order of operands, in so many levels of them."""
    reached, depth = _below(nodes, distinct(np.concatenate([first, second])), levels)
    terms, place = SharedTerms(len(reached)), np.full(len(reached), -1, dtype=np.int64)
    number = np.empty(nodes.count, dtype=_numbers(nodes))  # memory is taken for what is reached alone
    number[reached] = np.arange(len(reached))

    def placed(column: Ids) -> Ids:
        return place[number[column]]

    for row, own in by_rows(nodes, reached):
        numbers, ends = reached[own], depth[own] == levels
        cut, kept = numbers[ends], numbers[~ends]
        found = np.full(len(numbers), -1, dtype=np.int64)
        if cut.size:
            found[ends] = _found(terms, "cut", len(cut), [], cut.astype(np.uint64))
        if kept.size:
            operands = [placed(column[kept - row.first]) for column in _operands(row)]
            found[~ends] = _either_way(terms, row, kept, operands, fused=fused)
        place[own] = found
    same: Mask = placed(first) == placed(second)
    return same


def _below(nodes: Nodes, roots: Ids, levels: int) -> tuple[Ids, Codes]:
    """Return the nodes down to so many operations below some, those too, in order, and how far below."""
    far, found = np.zeros(nodes.count, dtype=np.int8), [roots]
    far[roots] = 1
    for level in range(levels if roots.size else 0):
        columns = [
            column[found[-1][own] - row.first]
            for row, own in by_rows(nodes, found[-1])
            for column in _operands(row)
        ]
        below = distinct(np.concatenate([np.zeros(0, np.int64), *columns]))
        found.append(below[far[below] == 0])
        far[found[-1]] = level + 2
    reached = np.sort(np.concatenate(found))
    depth = far[reached].astype(np.int32) - 1
    return reached, depth


def by_rows(nodes: Nodes, numbers: Ids) -> Iterator[tuple[Row, slice]]:
    """Yield the rows that some nodes, in order, belong to, and which of these do."""
    place = 0
    while place < len(numbers):
        row = nodes.rows[bisect_right(nodes.rows, numbers[place], key=attrgetter("first")) - 1]
        end = place + int(np.searchsorted(numbers[place:], row.first + row.count))
        yield row, slice(place, end)
        place = end


def _either_way(terms: SharedTerms, row: Row, kept: Ids, operands: list[Ids], *, fused: bool) -> Ids:
    """Return the terms of some nodes of a row, of sums and products with their operands in order."""
    name = _name(row)
    family, *how = name.split(".")
    how = [word for word in how if word != "rn"]
    if family == "fma" and fused:
        product = _found(terms, ".".join(("mul", *how)), len(kept), _sorted(operands[:2]), None)
        name, operands = ".".join(("product and", *how)), [product, operands[2]]
        multiplied = np.array([one.startswith("mul.") for one in terms.names], dtype=np.bool_)
        both = multiplied[terms.operation[operands[1]]]
        operands = [np.where(both, *pair) for pair in zip(_sorted(operands), operands, strict=True)]
    elif family in _COMMUTE and len(operands) == 2:
        name, operands = ".".join((family, *how)), _sorted(operands)
    value = row.value
    if _apart(name):
        value = kept.astype(np.uint64)
    elif value is not None:
        value = value[kept - row.first].astype(np.uint64)
    return _found(terms, name, len(kept), operands, value)


def _sorted(pair: Sequence[Ids]) -> list[Ids]:
    return [np.minimum(*pair), np.maximum(*pair)]


def _found(terms: SharedTerms, name: str, count: int, operands: Sequence[Ids], value: Bits | None) -> Ids:
    """Return the terms (count,) of one operation; operands, value: (count,) each, None where all have none.

    Many rows have a single one: what all threads begin with, or make of it.
    """
    columns = [*operands, *([] if value is None else [value])]
    alike = all(bool((column == column[0]).all()) for column in columns)
    made = 1 if alike else count
    edges = np.full((made, MOST_OPERANDS), -1, dtype=np.int64)
    for number, column in enumerate(operands):
        edges[:, number] = column[:made]
    found = terms.shared(name, edges, None if value is None else value[:made])
    return ids(np.broadcast_to(found, (count,))) if alike else found


def _part(  # noqa: PLR0917 (of one part)
    whole: Graph, line: Codes, place: Ids, kept: Mask, outputs: Mapping[str, Ids], several: Ids
) -> Graph:
    """Return the graph of what some nodes became; place: where each node lies in the whole, (count,).

    line: where the part computes each node of the whole first, (terms,). several: nodes of it in whose place
    another number may stay.
    """
    copied = np.zeros(len(whole) if several.size else 0, dtype=np.bool_)
    copied[place[several]] = True
    ends = {name: ids(place[wanted]) for name, wanted in outputs.items()}
    made = _counted(place, kept, len(whole))
    mine = made > 0
    if mine.all():
        return replace(whole, line=line, outputs=ends, made=made, several=copied if copied.size else None)
    number = np.append(np.cumsum(mine) - 1, -1)  # an operand that is absent stays so
    return replace(
        whole,
        operation=whole.operation[mine],
        operands=number[whole.operands.compress(mine, axis=0)],
        value=whole.value[mine],
        line=line[mine],
        outputs={name: number[wanted] for name, wanted in ends.items()},
        made=made[mine],
        several=copied[mine] if copied.size else None,
    )


def _counted(place: Ids, kept: Mask, count: int) -> Ids:
    """Return how many nodes lie at each place, a part of them at a time: numpy counts in 64 bits."""
    found = np.zeros(count, dtype=np.int64)
    for start in range(0, len(place), _PART):
        part = slice(start, start + _PART)
        found += np.bincount(place[part][kept[part]], minlength=count)
    return found


def digest(nodes: Nodes, kept: Mask, outputs: Mapping[str, Ids], several: Ids = _NONE) -> str:
    """Return a digest of all that the graph of the nodes kept says, as they were computed, lines apart.

    several: nodes, each once and in order, in whose place another number may stay.
    """
    number = np.cumsum(kept, dtype=_numbers(nodes))
    number -= 1
    found = sha256()
    for row, mine in _rows(nodes, kept):
        whole, operands, value = bool(mine.all()), _operands(row), _value(row, mine)
        columns = [number[column if whole else column[mine]] for column in operands]
        if value is not None:  # of literals most are one number many times
            columns.append(value[:1] if (value == value[0]).all() else value)
        counts = (int(np.count_nonzero(mine)), len(operands), *map(len, columns))
        found.update(f"{_name(row)} {counts}\n".encode())
        for column in columns:
            found.update(column.tobytes())
    for name, wanted in sorted(outputs.items()):
        found.update(f"{name} {wanted.shape}\n".encode() + ids(number[wanted]).tobytes())
    if (copied := several[kept[several]]).size:
        found.update(f"several {copied.shape}\n".encode() + ids(number[copied]).tobytes())
    return found.hexdigest()


def _rows(nodes: Nodes, kept: Mask) -> Iterator[tuple[Row, Mask]]:
    """Yield the rows of which any node is kept, and which are."""
    for row in nodes.rows:
        mine = kept[row.first : row.first + row.count]
        if mine.any():
            yield row, mine


def _name(row: Row) -> str:
    """Return a row's name: what has more operands than there is room for is unknown."""
    return row.name if len(row.operands) <= MOST_OPERANDS else f"unknown:{row.name}"


def _operands(row: Row) -> tuple[Ids, ...]:
    return row.operands if len(row.operands) <= MOST_OPERANDS else ()


def _value(row: Row, mine: Mask) -> Bits | None:
    if row.value is None:
        return None
    return np.ascontiguousarray(row.value[mine], dtype=np.uint64)


def _numbers(nodes: Nodes) -> type[np.signedinteger]:
    """Return the smaller type that has a number for each node: wide rows have many."""
    return np.int32 if nodes.count < 2**31 else np.int64


def _names(nodes: Nodes) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(_name, nodes.rows)))


def _apart(name: str) -> bool:
    return name.startswith("unknown:") or name == UNORDERED_SUM
