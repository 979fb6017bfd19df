"""Whether each row of a result is one and the same expression of its own elements, at several row counts.

The leaves of an argument are named by their column alone, and the expressions of all rows and recordings are
formed into one table of shared terms, by no rule: two rows are alike exactly if their edges are equal. That a
row reaches elements of no other row is asked of the recording beside it; with that, equal edges are equal
graphs but for the row. Nothing follows for numbers of rows that were not recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.graph import Graph, Ids
from verifier.arithmetic.graph.normal_form import Normaliser
from verifier.arithmetic.graph.support import labels_of, reach
from verifier.checks.support.reached_elements import positions_in_rows
from verifier.ops import Op
from verifier.records.case import Case


def rows_alike(recorded: Sequence[tuple[Case, Graph]], op: Op) -> dict[str, str]:
    """Return by result why its rows are not alike, or nothing where they are; results of rows alone.

    recorded: of one subject, dtype and number of columns.
    """
    terms, first, found = SharedTerms(), dict[str, Ids](), dict[str, str]()
    for case, graph in recorded:
        edges = Normaliser(terms, "").normal(_by_column(graph, op, case)).outputs
        for name, nodes in graph.outputs.items():
            if "row" not in positions_in_rows(op, case, name, nodes.shape):
                continue
            index = op.flat_index(case, name, nodes.shape)
            rows = edges[name].ravel()[index.ravel()].reshape(case.rows, -1)
            found.setdefault(name, "")
            if first.setdefault(name, rows[:1]).shape != rows[:1].shape or (rows != first[name]).any():
                found[name] = found[name] or f"at {case.rows} rows one is another expression"
            found[name] = found[name] or _foreign(graph, op, case, name)
    return found


def _by_column(graph: Graph, op: Op, case: Case) -> Graph:
    """Return a graph in which elements that lie in rows are named by their column alone."""
    value = graph.value.copy()
    for code, argument, shape, place in _in_rows(graph, op, case):
        columns = np.zeros(int(np.prod(shape)), dtype=np.uint64)
        columns[op.flat_index(case, argument, shape).ravel()] = (
            place["column"].ravel() if "column" in place else 0
        )
        nodes = np.flatnonzero(graph.operation == code)
        value[nodes] = columns[value[nodes].astype(np.int64)]
    return replace(graph, value=value)


def _foreign(graph: Graph, op: Op, case: Case, name: str) -> str:
    """Say that a row reaches an element of another one, or nothing."""
    nodes = graph.outputs[name]
    own = nodes.ravel()[op.flat_index(case, name, nodes.shape).ravel()]
    mine = positions_in_rows(op, case, name, nodes.shape)["row"].ravel()
    for _, argument, shape, place in _in_rows(graph, op, case):
        labels = np.zeros(place["row"].size, dtype=np.int64)
        labels[op.flat_index(case, argument, shape).ravel()] = place["row"].ravel()
        if reach(graph, labels_of(graph, argument, labels)).outside(own, mine).any():
            return f"at {case.rows} rows one reaches elements of {argument} in another"
    return ""


def _in_rows(graph: Graph, op: Op, case: Case) -> Iterator[tuple[int, str, tuple[int, ...], dict[str, Ids]]]:
    """Yield each argument that lies in rows and that the graph reads: its code, name, shape and places."""
    for code, leaf in enumerate(graph.names):
        argument = leaf.removeprefix("input:")
        if argument == leaf or argument not in case.given:
            continue
        shape = tuple(case.given[argument].shape)
        place = positions_in_rows(op, case, argument, shape)
        if "row" in place:
            yield code, argument, shape, place
