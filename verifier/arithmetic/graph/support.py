"""Which leaves the outputs of a graph reach, before any rule has removed a term.

What an expression does not reach cannot change its value, whatever the inputs are. The converse does not
hold: `x + 0 * y` reaches y. So it is asked of the graph as recorded, where nothing has been simplified yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from verifier.arithmetic.graph.graph import Graph, Ids, distinct, ids
from verifier.arithmetic.graph.levels import levels
from verifier.arithmetic.graph.opcodes import UNORDERED_SUM

Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]

_NONE = np.iinfo(np.int32).max
"""Both ends of what reaches no label: the lowest is this, the highest its negative."""
_known: WeakKeyDictionary[Graph, list[tuple[Ids, list[Ids]]]] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class Support:
    """The lowest and highest label among the leaves that each node reaches, (n,).

    A node that reaches no labelled leaf has `low` above `high`.
    """

    low: Ids
    high: Ids

    def none(self, nodes: Ids) -> Mask:
        """Return whether nodes reach no labelled leaf."""
        empty: Mask = self.low[nodes] > self.high[nodes]
        return empty

    def outside(self, nodes: Ids, allowed: Ids) -> Mask:
        """Return whether nodes reach a leaf with another label than the one allowed them."""
        other: Mask = (self.low[nodes] != allowed) | (self.high[nodes] != allowed)
        found: Mask = other & ~self.none(nodes)
        return found


def reach(graph: Graph, labels: Ids) -> Support:
    """Return which labels each node reaches.

    labels: (n,) a number of at least 0 for each leaf in question (for instance its row), -1 elsewhere.
    """
    narrow = labels.astype(np.int32)  # fewer bytes are moved: there are not 2**31 elements
    # Both ends in one array, the highest by its negative, so that one minimum finds both.
    ends = np.full((len(narrow) + 1, 2), _NONE, dtype=np.int32)
    ends[:-1][narrow >= 0] = narrow[narrow >= 0, None] * np.array([1, -1], dtype=np.int32)
    for level, operands in _steps(graph):
        found = ends.take(level, axis=0)
        for below in operands:
            np.minimum(found, ends.take(below, axis=0), out=found)
        ends[level] = found
    return Support(low=ids(ends[:-1, 0]), high=ids(-ends[:-1, 1]))


def marks(graph: Graph, own: Ids) -> Ids:
    """Return the bits that each node or any node that it reaches has; own: (n,) those of nodes themselves."""
    found = np.append(own, np.int64(0))
    for level, operands in _steps(graph):
        mine = found[level]
        for below in operands:
            mine |= found[below]
        found[level] = mine
    return found[:-1]


def _steps(graph: Graph) -> list[tuple[Ids, list[Ids]]]:
    """Return the nodes of each level but the first with their operands, kept as long as the graph is.

    An absent operand is -1, the entry at the end, which reaches nothing.
    """
    found = _known.get(graph)
    if found is None:
        found = _known[graph] = []
        for level in levels(graph)[1:]:
            columns = graph.operands[level].T
            found.append((level, [column.copy() for column in columns if (column >= 0).any()]))
    return found


def leaves_of(graph: Graph, nodes: Ids) -> Ids:
    """Return the leaves that any of these nodes reaches, in order."""
    seen = np.zeros(len(graph), dtype=np.bool_)
    frontier = np.unique(nodes)
    while frontier.size:
        seen[frontier] = True
        below = graph.operands.take(frontier, axis=0).ravel()
        below = below[below >= 0]
        frontier = distinct(below[~seen[below]])
    return np.flatnonzero(seen & (graph.operands[:, 0] < 0))


def labels_of(graph: Graph, argument: str, label: Ids) -> Ids:
    """Return labels for `reach`: those of one argument's elements, -1 elsewhere.

    label: one number for each element of the argument, in any shape.
    """
    found = np.full(len(graph), -1, dtype=np.int64)
    leaves = np.flatnonzero(
        np.array([name == f"input:{argument}" for name in graph.names], dtype=np.bool_)[graph.operation]
    )
    found[leaves] = label.ravel()[graph.value[leaves].astype(np.int64)]
    return found


def used_after_sums(graph: Graph) -> str:
    """Name an operation on a sum that is made in an order which is not known, "" where there is none.

    Such sums of equal terms are different numbers, perhaps. So they may be rounded to other formats, and be
    results; a sum may take its own parts.
    """
    names = np.array(graph.names, dtype=np.str_)[graph.operation]
    sums = names == UNORDERED_SUM
    if not sums.any():
        return ""
    rounds = np.char.startswith(names, "torch.to.") | np.char.startswith(names, "cvt.")
    taken = sums.copy()
    for node in np.flatnonzero(rounds).tolist():  # operands come first
        taken[node] = taken[graph.operands[node, 0]]
    takes = (graph.operands >= 0) & taken[graph.operands]
    takes[sums, 0] &= ~sums[graph.operands[sums, 0]]
    takes[rounds] = False
    found = np.flatnonzero(takes.any(axis=1))
    return str(names[found[0]]) if found.size else ""


def unknown_leaves(graph: Graph) -> dict[str, Ids]:
    """Return the leaves of unknown value that outputs reach, by reason."""
    reached = leaves_of(graph, graph.output_nodes())
    names = np.array(graph.names, dtype=np.str_)[graph.operation[reached]]
    unknown = [name for name in graph.names if name.startswith("unknown:")]
    found = {name.removeprefix("unknown:"): reached[names == name] for name in unknown}
    return {reason: leaves for reason, leaves in found.items() if leaves.size}
