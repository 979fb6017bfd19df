"""The sums of a kernel that is proved, told apart: what each is of, where it is made, and what uses it."""

from __future__ import annotations

import re

import numpy as np

from verifier.arithmetic.graph.support import marks
from verifier.checks.support.compared_graphs import Agreement
from verifier.records.certificate import ReadSum

_MOST = 63
"""Sums of which it is found out what uses them: bits of a number."""
_FORMAT = re.compile(r":(?:f16|bf16|f32|f64)\b")


def named_sums(found: Agreement) -> tuple[ReadSum, ...]:
    """Return the sums of the first row, in the order in which the declaration makes them."""
    places, results = _places(found), _results(found)
    return tuple(
        ReadSum(
            terms=order.terms,
            depth=order.depth,
            declared=order.declared_depth,
            of="" if order.first < 0 else without_formats(found.terms.text(order.first, 1)),
            line=places.get(order.root, ""),
            results=results.get(order.root, ()),
        )
        for order in found.orders
    )


def without_formats(text: str) -> str:
    """Return an expression in which elements of arguments are named without the format they are held in."""
    return _FORMAT.sub("", text)


def _places(found: Agreement) -> dict[int, str]:
    """Return the line on which the code makes the sum first, by root."""
    graph, terms = found.kernel.graph, found.kernel.edges >> 1
    known = np.array([bool(line) for line in graph.lines], dtype=np.bool_)[graph.line]
    nodes = np.flatnonzero(np.isin(terms, [order.root for order in found.orders]) & known)
    return {
        int(terms[node]): graph.lines[graph.line[node]].rpartition("/")[2] for node in nodes[::-1].tolist()
    }


def _results(found: Agreement) -> dict[int, tuple[str, ...]]:
    """Return which results reach the sum, by root."""
    graph, terms = found.kernel.graph, found.kernel.edges >> 1
    roots = sorted({order.root for order in found.orders if order.root >= 0})[:_MOST]
    own = np.zeros(len(graph), dtype=np.int64)
    for bit, root in enumerate(roots):
        own[terms == root] |= np.int64(1) << bit
    reached = marks(graph, own)
    used = {
        name: int(np.bitwise_or.reduce(reached[ids.ravel()], initial=0))
        for name, ids in graph.outputs.items()
    }
    return {
        root: tuple(name for name, bits in used.items() if bits >> bit & 1) for bit, root in enumerate(roots)
    }
