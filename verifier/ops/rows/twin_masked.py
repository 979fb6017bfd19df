"""The declared computation on symbols of rows of which a mask leaves some elements out, in their own order.

Which elements take part is known from shapes and scalars alone: a diagonal, no boolean mask. Rows that keep
the same elements are computed together, as whole rows of these; the rest is what the declaration says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from verifier.arithmetic.formats import Array
from verifier.arithmetic.graph.graph import Ids
from verifier.arithmetic.graph.symbols import SymbolicArithmetic
from verifier.ops.rows.twin_numbers import NoTwinError
from verifier.oracle.softmax.problem import SoftmaxProblem

Part = Callable[[int, int, Mapping[str, Array]], Mapping[str, Array]]
"""Computes so many rows of so many columns from their leaves, and returns their results."""


def computed_in_parts(
    rounded: SymbolicArithmetic,
    leaves: Mapping[str, Array],
    posed: SoftmaxProblem,
    empty: str | None,
    compute: Part,
) -> dict[str, Array]:
    """Return the results of rows of which some elements take part; empty: what a row without any gives.

    Raises:
        NoTwinError: there is no other row, or one is declared to give NaN, which is no number.

    """
    assert posed.kept is not None
    kept = np.asarray(posed.kept != 0.0)
    if not kept.any():
        raise NoTwinError("no element of any row takes part")
    if empty == "nan" and not kept.any(axis=1).all():
        raise NoTwinError("a row without an element is declared to give NaN")
    results: dict[str, Ids] = {}
    for rows, columns in _alike(kept):
        places = np.ix_(rows, columns)
        held = {name: rounded.symbols(rounded.nodes(one)[places]) for name, one in leaves.items()}
        for name, values in compute(len(rows), len(columns), held).items() if columns.size else ():
            if name not in results:
                nothing = -math.inf if name == "output" and posed.logarithm else 0.0
                node = rounded.nodes(np.full((1, 1), nothing))
                results[name] = np.broadcast_to(node, kept.shape).copy()
            results[name][places] = rounded.nodes(values)
    return {name: rounded.symbols(nodes) for name, nodes in results.items()}


def _alike(kept: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Iterator[tuple[Ids, Ids]]:
    """Yield the rows that keep the same elements, with these, in the order of the first of them."""
    _, first, which = np.unique(kept, axis=0, return_index=True, return_inverse=True)
    for number in np.argsort(first).tolist():
        yield np.flatnonzero(which.ravel() == number), np.flatnonzero(kept[first[number]])
