"""Verdicts on a row normalization: float64 first, then double-double, then Arb of growing precision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

import numpy as np

from verifier.arithmetic import Array
from verifier.oracle.balls import Ball, ball, precision
from verifier.oracle.climb import Balls, Decision, Rung, climb
from verifier.oracle.constants import RowConstants, row_constants
from verifier.oracle.elements_arb import row_elements
from verifier.oracle.enclosure import Enclosure, Mask
from verifier.oracle.normalization import solve
from verifier.oracle.parameters import Grouping, grouping
from verifier.oracle.problem import RowProblem, RowSolution, SoftmaxProblem, SoftmaxSolution
from verifier.oracle.row_sums import RowSums, row_list, row_sums
from verifier.oracle.rows import Rows, collect
from verifier.oracle.softmax_arb import SoftmaxArb

__all__ = ["Decision", "OutputName", "decide"]

OutputName = Literal[
    "output", "normalized", "mean", "variance", "rstd", "grad_input", "grad_weight", "grad_bias", "total"
]
PRECISIONS: Final = (256, 512, 1024, 2048, 4096, 8192)
"""Bits of the Arb rungs. 8192 ends it: only an error equal to its bound to 2000 digits stays open."""


def decide(
    problem: RowProblem | SoftmaxProblem,
    output_name: OutputName,
    actual: Array,
    bound: Array,
    *,
    solution: RowSolution | SoftmaxSolution | None = None,
) -> Decision:
    """Return, for each element, whether |actual - exact| <= bound is proved, refuted or open.

    actual: float64, in the shape of that output of `solve`; bound: broadcastable to it.
    solution: what `solve(problem)` returned, if it is at hand. Only rows with open elements climb
    (every row, for gradients of parameters). Elements without an exact value stay undecided:
    non-finite inputs, and rows with variance + eps <= 0.

    Raises:
        ValueError: an output without exact values (no grad_output), or shapes that do not fit.

    """
    first = solution or solve(problem)
    enclosure: Enclosure | None = getattr(first, output_name)
    if enclosure is None:
        raise ValueError(f"the problem has no {output_name}: no grad_output, or no input")
    if np.shape(actual) != enclosure.shape:
        raise ValueError(f"{output_name} has shape {enclosure.shape}, actual {np.shape(actual)}")
    if isinstance(problem, SoftmaxProblem):
        return climb(actual, bound, _softmax_rungs(problem, output_name, enclosure))
    return climb(actual, bound, _rungs(problem, output_name, enclosure))


def _softmax_rungs(problem: SoftmaxProblem, name: OutputName, first: Enclosure) -> Iterator[tuple[str, Rung]]:
    yield "double_double", lambda still: first[still]
    exact = SoftmaxArb(problem, name)
    for bits in PRECISIONS:
        yield "arb", partial(exact.values, bits=bits)


def _rungs(problem: RowProblem, name: OutputName, first: Enclosure) -> Iterator[tuple[str, Rung]]:
    yield "float64", lambda still: first[still]
    exists = np.isfinite(first.high)
    yield "double_double", lambda still: _second(problem, name, still, exists)
    exact = ArbRung(problem, name, exists)
    for bits in PRECISIONS:
        yield "arb", partial(exact.values, bits=bits)


def _second(problem: RowProblem, name: OutputName, still: Mask, exists: Mask) -> Enclosure:
    """Return the open elements in double-double; rows of which none is open are left out."""
    if name in ("grad_weight", "grad_bias"):
        return getattr(solve(problem, rung="double_double"), name)[still]  # type: ignore[no-any-return]
    open_rows = still.reshape(still.shape[0], -1).any(1)
    part = solve(_take(problem, np.flatnonzero(open_rows)), rung="double_double")
    found: Enclosure = getattr(part, name)[still[open_rows]]
    hidden = np.where(exists[still], 0.0, np.nan)
    return replace(found, high=found.high + hidden)


def _take(problem: RowProblem, rows: Any) -> RowProblem:
    """Return the problem of the chosen rows, for outputs of rows and elements only."""
    extent = problem.input.shape[0]

    def cut(value: Any) -> Any:
        return value if value is None or value.shape[0] != extent else value[rows]

    fields = ("input", "weight", "bias", "grad_output", "mean", "rstd", "variance")
    return replace(problem, parameter="columns", **{name: cut(getattr(problem, name)) for name in fields})


class ArbRung:
    """The exact values of chosen elements at any precision; the exact row sums are formed once."""

    def __init__(self, problem: RowProblem, name: OutputName, exists: Mask) -> None:
        self._rows: Rows = collect(problem)
        self._group: Grouping = grouping(self._rows)
        self._name = name
        self._exists = exists
        self._sums: RowSums | None = None

    def values(self, still: Mask, bits: int) -> Balls:
        """Return the open elements as balls of that precision."""
        self._sums = self._sums or row_sums(self._rows)
        constants = row_constants(self._rows, self._sums, bits)
        with precision(bits):
            found = dict(self._found(constants, still))
        exists = self._exists[still].tolist()
        positions = np.flatnonzero(still).tolist()
        return Balls(
            values=[found.get(k) if known else None for k, known in zip(positions, exists, strict=True)],
            bits=bits,
        )

    def _found(self, constants: RowConstants, still: Mask) -> Iterator[tuple[int, Ball | None]]:
        if self._name in ("mean", "variance", "rstd"):
            values: Sequence[Ball | None] = getattr(constants, self._name)
            return ((i, values[i]) for i in np.flatnonzero(still).tolist())
        if self._name in ("grad_weight", "grad_bias"):
            return self._entries(constants, still)
        return self._elements(constants, still)

    def _elements(self, constants: RowConstants, still: Mask) -> Iterator[tuple[int, Ball | None]]:
        width = still.shape[1]
        for i in np.flatnonzero(still.any(1)).tolist():
            if constants.rstd[i] is None:
                continue
            columns = np.flatnonzero(still[i]).tolist()
            values = getattr(row_elements(self._rows, constants, i, columns), self._name)
            yield from zip((i * width + j for j in columns), values, strict=True)

    def _entries(self, constants: RowConstants, still: Mask) -> Iterator[tuple[int, Ball | None]]:
        totals: dict[int, Ball | None] = {int(entry): ball(0.0) for entry in np.flatnonzero(still)}
        for i in range(self._rows.shape[0]):
            chosen = [
                (j, e) for j, e in enumerate(self._group.entry_of(i, self._rows.shape[1])) if e in totals
            ]
            values = self._summands(constants, i, [j for j, _ in chosen])
            for (_, entry), value in zip(chosen, values, strict=True):
                total = totals[entry]
                totals[entry] = None if total is None or value is None else total + value
        return iter(totals.items())

    def _summands(self, constants: RowConstants, i: int, columns: list[int]) -> Sequence[Ball | None]:
        if not columns:
            return []
        if self._name == "grad_bias":
            numbers = row_list(self._rows, self._rows.grad_output, i)
            return [ball(numbers[j]) for j in columns]
        if constants.rstd[i] is None:
            return [None] * len(columns)
        return row_elements(self._rows, constants, i, columns).contribution
