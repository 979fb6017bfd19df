"""The expression graph of a run: one row for each float operation, and the nodes that became outputs.

A node is a leaf (an input element, a literal, an unknown) or an operation on earlier nodes. Equal expressions
may occur many times: `verifier.arithmetic.graph.consing` shares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

__all__ = ["LEAVES", "Bits", "Builder", "Graph", "Ids", "distinct", "ids", "pruned"]

Ids = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Bits = np.ndarray[tuple[int, ...], np.dtype[np.uint64]]
Codes = np.ndarray[tuple[int, ...], np.dtype[np.int32]]

LEAVES = ("input:", "scalar:", "literal:", "unknown:")
"""How the names of nodes without operands begin."""


def ids(values: object) -> Ids:
    """Return values as node ids."""
    return np.asarray(values, dtype=np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Graph:
    """Operations in an order in which every operand comes before its use.

    names: the operations that occur. `input:<argument>` (value: the flat element in row-major order),
        `scalar:<name>`, `literal:<f16, bf16, f32 or f64>` (value: the bits), `unknown:<reason>`, or an
        operation: a PTX opcode with its rounding (`add.rn.f32`), `ite`, a host operation (`torch.add.f32`).
    operation: (n,) index into names.
    operands: (n, 3) earlier nodes, -1 where absent.
    value: (n,) what a leaf says of itself, 0 elsewhere.
    line: (n,) index into lines.
    lines: places in the source, "file.py:42", or "" where unknown.
    outputs: for each output the nodes of its elements, in its shape.
    formats: the format (f16, bf16, f32, f64) that the elements of an argument are held in.
    made: (n,) how many nodes of a run each stands for, which were the same; None: one each.
    several: (n,) whether another number may stay in a node's place, that of a copy of its thread, in which
        another product is fused; None: nowhere.
    """

    names: tuple[str, ...]
    operation: Codes
    operands: Ids
    value: Bits
    line: Codes
    lines: tuple[str, ...]
    outputs: Mapping[str, Ids]
    formats: Mapping[str, str] = field(default_factory=dict)
    made: Ids | None = None
    several: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] | None = None

    def __post_init__(self) -> None:
        """Refuse a table that is no graph.

        Raises:
            ValueError: columns differ in length, a name or line is missing, an operand is no earlier node, a
                leaf has operands or an operation none, or an output is no node.

        """
        n = len(self.operation)
        made, several = (n if column is None else len(column) for column in (self.made, self.several))
        columns = (len(self.value), len(self.line), len(self.operands), made, several)
        if columns != (n,) * len(columns) or self.operands.shape != (n, 3):
            raise ValueError(f"the columns of a graph of {n} nodes have other lengths: {columns}")
        _within(self.operation, len(self.names), "names")
        _within(self.line, len(self.lines), "lines")
        earlier = (self.operands < np.arange(n)[:, None]) & (self.operands >= -1)
        if not earlier.all():
            bad = int(np.flatnonzero(~earlier.all(axis=1))[0])
            raise ValueError(
                f"node {bad} uses {self.operands[bad].tolist()}, which are not all earlier nodes"
            )
        present = self.operands >= 0
        if (present[:, 1:] & ~present[:, :-1]).any():
            raise ValueError("an operand follows an absent one")
        leaf = np.array([name.startswith(LEAVES) for name in self.names], dtype=np.bool_)[self.operation]
        if (leaf & present[:, 0]).any() or (~leaf & ~present[:, 0]).any():
            raise ValueError("a leaf has operands, or an operation has none")
        for nodes in self.outputs.values():
            _within(nodes, n, "nodes")

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self.operation)

    def times(self, nodes: Ids) -> int:
        """Return for how many nodes of a run these stand."""
        return len(nodes) if self.made is None else int(self.made[nodes].sum())

    def named(self, prefix: str) -> Ids:
        """Return the nodes whose names begin with prefix, in order."""
        wanted = np.array([name.startswith(prefix) for name in self.names], dtype=np.bool_)
        return np.flatnonzero(wanted[self.operation])

    def output_nodes(self) -> Ids:
        """Return the nodes that are elements of outputs, each once."""
        return distinct(np.concatenate([np.zeros(0, np.int64), *(o.ravel() for o in self.outputs.values())]))

    def save(self, path: Path) -> None:
        """Write the graph as a compressed archive of arrays (.npz)."""
        np.savez_compressed(
            path,
            allow_pickle=False,
            operation=self.operation,
            operands=self.operands,
            value=self.value,
            line=self.line,
            names=np.array(self.names, dtype=np.str_),
            lines=np.array(self.lines, dtype=np.str_),
            formats=np.array(list(self.formats.items()), dtype=np.str_).reshape(-1, 2),
            **({} if self.made is None else {"made": self.made}),
            **({} if self.several is None else {"several": self.several}),
            **{f"output:{name}": nodes for name, nodes in self.outputs.items()},
        )

    @staticmethod
    def load(path: Path) -> Graph:
        """Read what `save` wrote.

        Raises:
            ValueError: the archive holds no graph.

        """
        with np.load(path, allow_pickle=False) as held:
            outputs = {k.removeprefix("output:"): held[k] for k in held.files if k.startswith("output:")}
            return Graph(
                names=tuple(map(str, held["names"])),
                operation=held["operation"],
                operands=held["operands"],
                value=held["value"],
                line=held["line"],
                lines=tuple(map(str, held["lines"])),
                outputs=outputs,
                formats={str(name): str(kept) for name, kept in held["formats"]},
                made=held["made"] if "made" in held.files else None,
                several=held["several"] if "several" in held.files else None,
            )


class Builder:
    """Builds a graph, many nodes of one operation at a time."""

    def __init__(self) -> None:
        """Begin with no node."""
        self._names: dict[str, int] = {}
        self._lines: dict[str, int] = {}
        self._rows: list[tuple[Codes, Ids, Bits, Codes]] = []
        self._length = 0

    def append(self, name: str, *operands: object, value: object = 0, line: str = "") -> Ids:
        """Append one node of operation `name` for each element of its operands or values; return their ids.

        operands: up to three arrays of ids of one shape, or shapes that broadcast to it.
        value: what leaves say of themselves, in that shape.
        """
        *given, values = np.broadcast_arrays(*map(ids, operands), np.asarray(value, dtype=np.uint64))
        count, shape = values.size, values.shape
        columns = np.full((count, 3), -1, dtype=np.int64)
        for place, column in enumerate(given):
            columns[:, place] = column.ravel()
        code = self._names.setdefault(name, len(self._names))
        where = self._lines.setdefault(line, len(self._lines))
        self._rows.append(
            (
                np.full(count, code, dtype=np.int32),
                columns,
                values.astype(np.uint64).ravel(),
                np.full(count, where, dtype=np.int32),
            )
        )
        self._length += count
        return np.arange(self._length - count, self._length, dtype=np.int64).reshape(shape)

    def __len__(self) -> int:
        """Return the number of nodes."""
        return self._length

    def names(self) -> tuple[str, ...]:
        """Return the operations so far."""
        return tuple(self._names)

    def rows(self, since: int) -> list[tuple[Codes, Ids, Bits, Codes]]:
        """Return operation, operands, value and line of what was appended after so many times."""
        return self._rows[since:]

    def made_by(self, nodes: Ids) -> tuple[str, Ids]:
        """Return the operation of nodes (n,) that were appended together, and operands (n, 3), -1: absent."""
        first = 0
        for codes, columns, _, _ in self._rows:
            if first <= int(nodes.min()) and int(nodes.max()) < first + len(columns):
                return tuple(self._names)[codes[0]], columns[nodes - first]
            first += len(columns)
        raise ValueError("the nodes were not appended together")

    def graph(self, outputs: Mapping[str, Ids], formats: Mapping[str, str] | None = None) -> Graph:
        """Return the graph of all nodes so far.

        Raises:
            ValueError: see `Graph`.

        """
        columns = [np.concatenate(column) for column in zip(*self._rows, strict=True)] or [
            np.zeros(0, np.int32),
            np.zeros((0, 3), np.int64),
            np.zeros(0, np.uint64),
            np.zeros(0, np.int32),
        ]
        return Graph(
            names=tuple(self._names),
            operation=columns[0],
            operands=columns[1],
            value=columns[2],
            line=columns[3],
            lines=tuple(self._lines) or ("",),
            outputs=dict(outputs),
            formats=dict(formats or {}),
        )


def distinct(values: Ids | Codes) -> Ids:
    """Return each number once, in order. Sorting is several times faster here than numpy's own `unique`."""
    ordered = np.sort(values)
    first = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ids(ordered[first])


def ordering(numbers: Ids) -> Ids:
    """Return the places of numbers from 0 to 2**32 - 1 in their order, of equal ones the first place first.

    By halves of 16 bits, which numpy sorts by their digits: three times as fast as its stable sort of all.
    """
    order = np.argsort((numbers & 0xFFFF).astype(np.uint16), kind="stable")
    upper = (numbers >> 16).astype(np.uint16)[order]
    return ids(order[np.argsort(upper, kind="stable")])


def pruned(graph: Graph) -> Graph:
    """Return the nodes that outputs reach, in the same order, numbered anew: the graph itself if all are."""
    used = np.zeros(len(graph) + 1, dtype=np.bool_)
    used[graph.operands.ravel()] = True
    frontier = graph.output_nodes()
    used[frontier] = True
    if used[:-1].all():  # each is an output or used later on, where again each is
        return graph
    kept = np.zeros(len(graph), dtype=np.bool_)
    while frontier.size:
        kept[frontier] = True
        below = graph.operands.take(frontier, axis=0).ravel()
        below = below[below >= 0]
        frontier = distinct(below[~kept[below]])
    number = np.full(len(graph) + 1, -1, dtype=np.int64)
    number[:-1][kept] = np.arange(int(kept.sum()))
    return Graph(
        names=graph.names,
        operation=graph.operation[kept],
        operands=number[graph.operands.compress(kept, axis=0)],
        value=graph.value[kept],
        line=graph.line[kept],
        lines=graph.lines,
        outputs={name: number[nodes] for name, nodes in graph.outputs.items()},
        formats=graph.formats,
        made=None if graph.made is None else graph.made[kept],
        several=None if graph.several is None else graph.several[kept],
    )


def _within(values: Ids | Codes, count: int, what: str) -> None:
    if values.size and not (int(values.min()) >= 0 and int(values.max()) < count):
        raise ValueError(f"an index lies outside of the {count} {what}")
