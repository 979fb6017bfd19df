"""Approximate results of constants that PTX settles: those of zeros, of infinities and of NaN.

Of any other constant an approximate instruction gives what a device makes of it, within its documented error.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from verifier.arithmetic.graph.constants import FULL_NAMES, decoded
from verifier.arithmetic.graph.graph import Bits, Graph, Ids, pruned
from verifier.arithmetic.graph.levels import levels
from verifier.machine.arithmetic.approximation import Approximation
from verifier.machine.operations.operation import Operation
from verifier.machine.operations.resolve import resolve
from verifier.machine.shadow.graph_nodes import computed

Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


def is_approximate(name: str) -> bool:
    """Whether an operation of a graph gives an approximation."""
    return not {"approx", "full"}.isdisjoint(name.split("."))


def with_settled(graph: Graph, model: Approximation) -> Graph:
    """Return a graph in which settled results of approximate instructions on constants are literals.

    model: that of the machine, which gives what PTX says where it says it.
    """
    settled, bits = _constants(graph, model)
    approximate = np.array([is_approximate(name) for name in graph.names], dtype=np.bool_)
    settled &= approximate[graph.operation]
    if not settled.any():
        return graph
    kinds = {code: _kind(graph.names[code]) for code in np.unique(graph.operation[settled]).tolist()}
    names = tuple(dict.fromkeys((*graph.names, *(f"literal:{kind}" for kind in kinds.values()))))
    operation = graph.operation.copy()
    for code, kind in kinds.items():
        operation[settled & (graph.operation == code)] = names.index(f"literal:{kind}")
    return pruned(
        replace(
            graph, names=names, operation=operation, operands=np.where(settled[:, None], -1, graph.operands),
            value=np.where(settled, bits, graph.value),
        )
    )  # fmt: skip


def _constants(graph: Graph, model: Approximation) -> tuple[Mask, Bits]:
    """Return which nodes are the same number for all inputs and on all devices, and their bits."""
    known = np.zeros(len(graph), dtype=np.bool_)
    bits = np.zeros(len(graph), dtype=np.uint64)
    with np.errstate(all="ignore"):
        for level in levels(graph):
            for code in np.unique(graph.operation[level]).tolist():
                name, nodes = graph.names[code], level[graph.operation[level] == code]
                if name.startswith("literal:"):
                    known[nodes], bits[nodes] = True, graph.value[nodes]
                    continue
                operands = graph.operands[nodes]
                nodes = nodes[((operands < 0) | known[operands]).all(axis=1) & (operands[:, 0] >= 0)]
                operation = _operation(name)
                if operation is not None and is_approximate(name):
                    nodes = nodes[_special(graph.operands[nodes], bits, operation)]
                if not nodes.size or (operation is None and name not in _OF_ALL):
                    continue
                below = graph.operands[nodes].T
                found = computed(name, [bits[column] for column in below if (column >= 0).all()], model)
                known[nodes], bits[nodes] = True, found
    return known, bits


_OF_ALL = frozenset({"ite", "and.pred", "or.pred", "xor.pred", "not.pred", "to_bits.b32", "from_bits.f32"})
"""Operations that are none of the machine's by name, and have a value here."""


def _operation(name: str) -> Operation | None:
    return None if name in _OF_ALL or name.startswith("torch.") else resolve(name)


def _kind(name: str) -> str:
    operation = _operation(name)
    assert operation is not None
    return operation.results[0]


def _special(operands: Ids, bits: Bits, operation: Operation) -> Mask:
    """Return of which nodes (n, 3) an operand is a zero, infinite or NaN."""
    found = np.zeros(len(operands), dtype=np.bool_)
    for place, kind in enumerate(operation.sources):
        if kind in FULL_NAMES:
            numbers = decoded(kind, bits[operands[:, place]])
            found |= ~np.isfinite(numbers) | (numbers == 0.0)
    return found
