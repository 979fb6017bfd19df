"""Chosen elements of a row normalization in Arb: the last rung of the ladder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np

from verifier.arithmetic.error_free.numpy_or_torch import Arrays
from verifier.oracle.balls import Ball, ball, balls, precision
from verifier.oracle.climb import Balls
from verifier.oracle.enclosure import Mask
from verifier.oracle.problem import RowOperands
from verifier.oracle.rows.constants import RowConstants, row_constants
from verifier.oracle.rows.elements_arb import row_elements
from verifier.oracle.rows.exact_sums import RowSums, row_list, row_sums
from verifier.oracle.rows.operands import Rows, collect
from verifier.oracle.rows.parameters import Grouping, grouping

Operands = TypeVar("Operands", bound=RowOperands)

PARAMETER_GRADIENTS: Final = ("grad_weight", "grad_bias")
"""Outputs that sum over rows; all others need only their own row."""


RowNumbers = np.ndarray[tuple[int, ...], np.dtype[np.integer]]
"""Numbers of rows."""


def take(problem: Operands, rows: RowNumbers) -> Operands:
    """Return the problem of the chosen rows, for outputs of rows and elements only."""
    extent = problem.input.shape[0]

    def cut(value: Arrays) -> Arrays:
        return value if value is None or value.shape[0] != extent else value[rows]

    fields = ("input", "weight", "bias", "grad_output", "mean", "rstd", "variance")
    return replace(problem, parameter="columns", **{name: cut(getattr(problem, name)) for name in fields})


class ArbRung:
    """The exact values of chosen elements of one output at any precision.

    Exact row sums are formed once, of the rows that are open at the first call alone, unless the output
    sums over rows. Later calls may only ask for what was open before.
    """

    def __init__(self, problem: RowOperands, name: str, exists: Mask) -> None:
        self._problem = problem
        self._name = name
        self._exists = exists
        self._prepared: tuple[Rows, RowSums, Grouping, dict[int, int]] | None = None

    def values(self, still: Mask, bits: int) -> Balls:
        """Return the open elements as balls of that precision."""
        if self._prepared is None:
            self._prepared = self._prepare(still)
        rows, sums, group, local = self._prepared
        constants = row_constants(rows, sums, bits)
        with precision(bits):
            if self._name in PARAMETER_GRADIENTS:
                found = _entries(self._name, rows, constants, group, still)
            else:
                found = dict(_elements(self._name, rows, constants, local, still))
        exists = self._exists[still].tolist()
        positions = np.flatnonzero(still).tolist()
        return Balls(
            values=[found.get(k) if known else None for k, known in zip(positions, exists, strict=True)],
            bits=bits,
        )

    def _prepare(self, still: Mask) -> tuple[Rows, RowSums, Grouping, dict[int, int]]:
        problem, local = self._problem, {}
        if self._name not in PARAMETER_GRADIENTS:
            open_rows = np.flatnonzero(still.reshape(still.shape[0], -1).any(1))
            problem = take(problem, open_rows)
            local = {row: place for place, row in enumerate(open_rows.tolist())}
        rows = collect(problem)
        return rows, row_sums(rows), grouping(rows), local


def _elements(
    name: str, rows: Rows, constants: RowConstants, local: dict[int, int], still: Mask
) -> Iterator[tuple[int, Ball | None]]:
    """Yield (flat position, value) of the open elements; local: the place of each row among `rows`."""
    if still.ndim == 1:
        scalars: Sequence[Ball | None] = getattr(constants, name)
        yield from ((i, scalars[local[i]]) for i in np.flatnonzero(still).tolist())
        return
    width = still.shape[1]
    for i in np.flatnonzero(still.any(1)).tolist():
        if constants.rstd[local[i]] is None:
            continue
        columns = np.flatnonzero(still[i]).tolist()
        values = getattr(row_elements(rows, constants, local[i], columns), name)
        yield from zip((i * width + j for j in columns), values, strict=True)


def _entries(
    name: str, rows: Rows, constants: RowConstants, group: Grouping, still: Mask
) -> dict[int, Ball | None]:
    """Return the sums of the open entries over all rows; None where a refused row takes part."""
    totals: dict[int, Ball | None] = {entry: ball(0.0) for entry in np.flatnonzero(still).tolist()}
    for i in range(rows.shape[0]):
        columns, entries = _members(group, i, still)
        for entry, value in zip(entries, _summands(name, rows, constants, i, columns), strict=True):
            total = totals[entry]
            totals[entry] = None if total is None or value is None else total + value
    return totals


def _members(group: Grouping, i: int, still: Mask) -> tuple[list[int], list[int]]:
    """Return the columns of row i that belong to open entries, and these entries."""
    if group.kind == "columns":
        columns = np.flatnonzero(still).tolist()
        return columns, columns
    if group.kind == "rows":
        columns = list(range(group.count)) if still[i] else []
        return columns, [i] * len(columns)
    line = np.asarray(group.kit.host(group.index[i])).astype(int)
    chosen = np.flatnonzero(still[line])
    return chosen.tolist(), line[chosen].tolist()


def _summands(
    name: str, rows: Rows, constants: RowConstants, i: int, columns: list[int]
) -> Sequence[Ball | None]:
    if not columns:
        return []
    if name == "grad_bias":
        numbers = row_list(rows, rows.grad_output, i)
        return balls(numbers[j] for j in columns)
    if constants.rstd[i] is None:
        return [None] * len(columns)
    return row_elements(rows, constants, i, columns).contribution
