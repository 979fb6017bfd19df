"""On which elements of each argument a recorded result depends, in words, before any rule: for all inputs.

It is what the check `influence` tries on some inputs: an expression that does not reach an element cannot
change with it, whatever the inputs are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from verifier.arithmetic.graph.graph import Graph, Ids
from verifier.arithmetic.graph.support import labels_of, reach
from verifier.ops import Op
from verifier.records.case import Case
from verifier.records.subject import PARAMETERS

ALL = "all elements"


def elements_reached(graph: Graph, op: Op, case: Case) -> dict[str, dict[str, str]]:
    """Return for each result on which elements of each argument one of its elements depends at most.

    "its row" and "its column" are those in canonical rows; arguments that are not reached are left out.
    """
    found: dict[str, dict[str, str]] = {name: {} for name in graph.outputs}
    given = {name.removeprefix("input:") for name in graph.names if name.startswith("input:")}
    for argument in sorted(given & {*case.given}):
        shape = tuple(case.given[argument].shape)
        index = op.flat_index(case, argument, shape)
        kept: dict[str, dict[str, bool]] = {}
        if argument in op.wholes:
            reached = reach(graph, labels_of(graph, argument, in_memory(index, np.zeros_like(index))))
            some = (name for name, nodes in graph.outputs.items() if not reached.none(nodes.ravel()).all())
            kept = {name: {} for name in some}
        for axis, place in positions_in_rows(op, case, argument, shape).items():
            reached = reach(graph, labels_of(graph, argument, in_memory(index, place)))
            for name, nodes in graph.outputs.items():
                own = nodes.ravel()[op.flat_index(case, name, nodes.shape).ravel()]
                if reached.none(own).all():
                    continue
                mine = positions_in_rows(op, case, name, nodes.shape).get(axis)
                alone = mine is not None and not reached.outside(own, mine.ravel()).any()
                kept.setdefault(name, {})[axis] = alone
        for name, axes in kept.items():
            found[name][argument] = _words(axes)
    return found


def positions_in_rows(op: Op, case: Case, name: str, shape: tuple[int, ...]) -> dict[str, Ids]:
    """Return where each element lies in canonical rows: its row, its column, its entry of weight.

    A mask that rows share lies in none.
    """
    index = op.flat_index(case, name, shape)
    if name in op.drawn and index.size != math.prod(shape):
        return {}
    parameter = getattr(op.problem(case), "parameter", "columns")
    grid = np.indices(index.shape)
    if index.ndim == 2:
        entry = {"entry": parameter} if isinstance(parameter, np.ndarray) else {}
        return {"row": grid[0], "column": grid[1], **entry}
    if name.removeprefix("grad_") in op.wholes:
        return {}
    if name.removeprefix("grad_") not in PARAMETERS:
        return {"row": grid.reshape(-1)}
    axis = "entry" if isinstance(parameter, np.ndarray) else str(parameter).removesuffix("s")
    return {axis: grid.reshape(-1)}


def told_apart(
    op: Op, case: Case, argument: str, shape: tuple[int, ...], results: Iterable[str]
) -> Iterator[tuple[list[str], Ids]]:
    """Yield labels of an argument's elements, with the results whose support the least and largest tell.

    A result of a row reaches elements that follow each other in canonical rows. The gradient of a parameter
    reaches some of every row: its own column, or what has its entry, in rows that have its entry somewhere.
    """
    index = op.flat_index(case, argument, shape)
    parameter = getattr(op.problem(case), "parameter", "columns")
    yield [*results], in_memory(index, np.arange(index.size))
    roles = {name: name.removeprefix("grad_") for name in results}
    summed = [name for name, role in roles.items() if role in PARAMETERS and role not in op.wholes]
    if not summed or index.ndim != 2 or (isinstance(parameter, str) and parameter != "columns"):
        return
    if isinstance(parameter, str):
        yield summed, in_memory(index, np.indices(index.shape)[1])
        return
    yield summed, in_memory(index, parameter)
    yield summed, in_memory(index, np.broadcast_to(parameter.min(axis=1, keepdims=True), index.shape))


def beyond_its_part(graph: Graph, op: Op, case: Case, argument: str) -> str:
    """Return a result of which an element reaches what takes no part in its row, or nothing; under a mask.

    That is every element of other rows, and of its own the scores before the first and after the last that
    take part; a gradient that comes to one of these may be multiplied by the 0 that it has for an output.
    graph: one without what is never chosen.
    """
    tensor = case.given[argument]
    index = op.flat_index(case, argument, tuple(tensor.shape))
    part = ~op.untouched(case) if argument in op.tensors else np.ones_like(index, dtype=np.bool_)
    low = np.where(part, index, tensor.numel()).min(axis=1, keepdims=True)
    high = np.where(part, index, -1).max(axis=1, keepdims=True)
    reached = reach(graph, labels_of(graph, argument, np.arange(tensor.numel())))
    for name, nodes in graph.outputs.items():
        own = nodes.ravel()[op.flat_index(case, name, nodes.shape)]
        if (~reached.none(own) & ((reached.low[own] < low) | (reached.high[own] > high))).any():
            return name
    return ""


def in_memory(index: Ids, labels: Ids) -> Ids:
    """Return labels, given in canonical rows, by place in memory."""
    found = np.zeros(index.size, dtype=np.int64)
    found[index.ravel()] = labels.ravel()
    return found


def _words(alone: dict[str, bool]) -> str:
    """Say on what elements depend; alone: along which axes on those at their own place."""
    mine = [axis for axis, is_own in alone.items() if is_own]
    if not mine:
        return ALL
    if {"row", "column"} <= {*mine} or len(alone) == 1:
        return "its element" if "column" in alone and len(alone) > 1 else f"that of its {mine[0]}"
    return f"its {mine[0]}"
