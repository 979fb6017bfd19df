"""The levels of a graph: nodes whose operands all lie below them, so that a level is one array operation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from weakref import WeakKeyDictionary

import numpy as np

from verifier.arithmetic.graph.graph import Graph, Ids, distinct, ids, ordering

_known: WeakKeyDictionary[Graph, Sequence[Ids]] = WeakKeyDictionary()


def levels(graph: Graph) -> Sequence[Ids]:
    """Return the nodes of each level in order, leaves first: a node lies one above its highest operand.

    They are kept as long as the graph is, which several walks go through.
    """
    found = _known.get(graph)
    if found is None:
        found = _known[graph] = list(levels_of(graph.operands))
    return found


def reaching(operands: Ids, wanted: Ids) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return which rows of a table of operands (n, 3) reach any of those wanted, these included, (n + 1,).

    The last one is for operands that are absent, -1.
    """
    found = np.zeros(len(operands) + 1, dtype=np.bool_)
    found[wanted] = True
    for level in levels_of(operands) if wanted.size else ():
        found[level] |= found[operands[level]].any(axis=1)
    return found


def levels_of(operands: Ids) -> Iterator[Ids]:
    """Yield the levels of a table of operands (n, 3), -1 where absent."""
    present = operands >= 0
    waiting = present.sum(axis=1)
    user, place = np.nonzero(present)
    used = operands[user, place]
    user = user[ordering(used)]
    starts = np.concatenate([[0], np.cumsum(np.bincount(used, minlength=len(operands)))])
    level = ids(np.flatnonzero(waiting == 0))
    while level.size:
        yield level
        above = user[_ranges(starts[level], starts[level + 1])]
        np.subtract.at(waiting, above, 1)
        level = distinct(above[waiting[above] == 0])


def _ranges(starts: Ids, ends: Ids) -> Ids:
    """Return the concatenation of the ranges from each start to its end."""
    counts = ends - starts
    offsets = np.cumsum(counts) - counts
    return ids(np.arange(int(counts.sum())) + np.repeat(starts - offsets, counts))
