"""Which rows the recorded expressions of results reach, before any rule; for all inputs where they hold so.

A dependence through a comparison, a choice or a product with zero is an operand like any other there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from verifier import ops
from verifier.arithmetic.graph.graph import Graph, Ids
from verifier.arithmetic.graph.support import Mask, Support, labels_of, reach
from verifier.checks.support.only_path import same_for_all
from verifier.checks.support.reached_elements import positions_in_rows
from verifier.checks.support.recorded_code import RefusedError, must_hold_for_all_inputs
from verifier.execution.backend import Backend
from verifier.execution.record_graph import RecordedGraph, recorded_graph
from verifier.ops import Op
from verifier.records.case import Case
from verifier.records.observation import Observation
from verifier.records.subject import Subject


@dataclass(frozen=True, kw_only=True)
class Outside:
    """Elements of a result, in canonical rows, that reach a row or an entry which is not their own.

    source: that row, or entry of weight. entries: whether it is an entry.
    """

    output: str
    source: int
    wrong: Mask
    entries: bool


@dataclass(frozen=True, kw_only=True)
class RowSupport:
    """What results reach; limited: why that is not so for all inputs of the shape, "" where it is."""

    outside: tuple[Outside, ...]
    limited: str


def experiment(subject: Subject, case: Case, *, backend: Backend, gradients: bool) -> Observation:
    """Record a case, and return what its results reach, as a `RowSupport`; runs in the child."""
    seen = recorded_graph(subject, case, backend=backend, gradients=gradients)
    if seen.status != "ok":
        return seen
    one = seen.found_as(RecordedGraph)
    found = RowSupport(outside=tuple(outside(one.graph, ops.op(case.op), case)), limited=_limited(one))
    return replace(seen, found=found)


def _limited(one: RecordedGraph) -> str:
    """Say why expressions are not those of all inputs."""
    try:
        must_hold_for_all_inputs(one, paths=True)
        same_for_all(one.paths, one.graph)
    except RefusedError as error:
        return str(error)
    return ""


def outside(graph: Graph, op: Op, case: Case) -> Iterator[Outside]:
    """Yield each result that reaches other rows; of gradients of parameters, other entries of grad_output."""
    by_row = _reached(graph, op, case, "row", {*case.given})
    entry = _axis_of_entries(op, case)
    by_entry = _reached(graph, op, case, entry, {"grad_output"}) if entry else None
    for name, nodes in graph.outputs.items():
        if op.sums_all(name):
            continue
        summed = op.sums_rows(name)
        reached = by_entry if summed else by_row
        own = positions_in_rows(op, case, name, nodes.shape)
        axis = entry if summed else "row"
        if reached is None or axis not in own or not nodes.size:
            continue
        index = op.flat_index(case, name, nodes.shape)
        canonical, mine = nodes.ravel()[index.ravel()], own[axis].ravel()
        amiss = reached.outside(canonical, mine)
        if amiss.any():
            low, high = reached.low[canonical], reached.high[canonical]
            first = int(np.flatnonzero(amiss)[0])
            source = int(low[first] if low[first] != mine[first] else high[first])
            wrong = amiss & (mine != source) & ((low == source) | (high == source))
            yield Outside(output=name, source=source, wrong=wrong.reshape(index.shape), entries=summed)


def _axis_of_entries(op: Op, case: Case) -> str:
    """Return along which axis of grad_output lie the entries of weight, "" where there are none."""
    problem = op.problem(case)
    parameter = getattr(problem, "parameter", None)
    if "grad_output" not in case.given or parameter is None:
        return ""
    return "entry" if isinstance(parameter, np.ndarray) else str(parameter).removesuffix("s")


def _reached(graph: Graph, op: Op, case: Case, axis: str, names: set[str]) -> Support:
    """Return which places along an axis of canonical rows are reached, of these arguments."""
    labels: Ids = np.full(len(graph), -1, dtype=np.int64)
    for name in sorted(names):
        shape = tuple(case.given[name].shape)
        place = positions_in_rows(op, case, name, shape).get(axis)
        if place is not None and place.size:
            flat = np.zeros(place.size, dtype=np.int64)
            flat[op.flat_index(case, name, shape).ravel()] = place.ravel()
            labels = np.maximum(labels, labels_of(graph, name, flat))
    return reach(graph, labels)
