"""The levels of a graph: nodes whose operands all lie below them, so that a level is one array operation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from verifier.arithmetic.graph.graph import Graph, Ids, ids


def levels(graph: Graph) -> Iterator[Ids]:
    """Yield the nodes of each level in order, leaves first: a node lies one above its highest operand."""
    yield from levels_of(graph.operands)


def levels_of(operands: Ids) -> Iterator[Ids]:
    """Yield the levels of a table of operands (n, 3), -1 where absent."""
    present = operands >= 0
    waiting = present.sum(axis=1)
    user, place = np.nonzero(present)
    used = operands[user, place]
    user = user[np.argsort(used, kind="stable")]
    starts = np.concatenate([[0], np.cumsum(np.bincount(used, minlength=len(operands)))])
    level = np.flatnonzero(waiting == 0)
    while level.size:
        yield level
        above = user[_ranges(starts[level], starts[level + 1])]
        np.subtract.at(waiting, above, 1)
        level = np.unique(above[waiting[above] == 0])


def _ranges(starts: Ids, ends: Ids) -> Ids:
    """Return the concatenation of the ranges from each start to its end."""
    counts = ends - starts
    offsets = np.cumsum(counts) - counts
    return ids(np.arange(int(counts.sum())) + np.repeat(starts - offsets, counts))
