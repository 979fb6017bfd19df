"""The exact sums that determine the constants of a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np

from verifier.arithmetic.error_free.double_double import split, two_product
from verifier.arithmetic.error_free.exact_sums import exact_parts
from verifier.arithmetic.error_free.numpy_or_torch import NUMPY, Arrays, Kit
from verifier.arithmetic.formats import Array
from verifier.oracle.balls import EXACT_BITS, Ball, ball, balls, exact_sum, precision, shifted
from verifier.oracle.rows.operands import Rows, rows_between

BLOCK: Final = 2**14
"""Elements that are extracted at a time on the CPU: three arrays of 128 KiB."""


@dataclass(frozen=True, kw_only=True)
class RowSums:
    """Exact balls, one for each row: sums of x, x**2, g = grad_output * weight, and g * x.

    The last two are empty where the gradient does not need them.
    """

    count: int
    x: Sequence[Ball]
    squares: Sequence[Ball]
    gradient: Sequence[Ball]
    products: Sequence[Ball]


def row_sums(rows: Rows, *, fast: bool = True) -> RowSums:
    """Return the exact sums of each row, by extraction where the exponents allow it; not fast: by balls."""
    count = rows.shape[1]
    rows = rows.scaled if fast else rows
    slow = rows.unusual if fast else np.ones(rows.shape[0], dtype=bool)
    if slow.all():
        return _assemble(count, [_by_balls(rows, i) for i in range(rows.shape[0])])
    columns = _in_blocks(rows)
    if slow.any():
        for i in np.flatnonzero(slow):
            for column, value in zip(columns, _by_balls(rows, int(i)), strict=True):
                column[i] = value
    if rows.shifts is not None:
        _unscale(columns, rows.shifts)
    return _assemble(count, list(zip(*columns, strict=True)))


def needs_gradient(rows: Rows) -> bool:
    """Whether the gradient flows through the statistics."""
    return rows.grad_output is not None and not rows.constant_statistics


def _assemble(count: int, per_row: Sequence[Sequence[Ball]]) -> RowSums:
    columns = [list(column) for column in zip(*per_row, strict=True)] if per_row else []
    columns += [[] for _ in range(4 - len(columns))]
    return RowSums(count=count, x=columns[0], squares=columns[1], gradient=columns[2], products=columns[3])


def _in_blocks(rows: Rows) -> list[list[Ball]]:
    """Extract block by block, so that the passes stay in the cache; on a GPU all at once."""
    extent, columns = rows.shape
    step = max(1, BLOCK // max(1, columns)) if rows.kit is NUMPY else max(1, extent)
    blocks = [_by_extraction(rows_between(rows, i, min(i + step, extent))) for i in range(0, extent, step)]
    return [list(chain.from_iterable(column)) for column in zip(*blocks, strict=True)]


def _unscale(columns: list[list[Ball]], shifts: Array) -> None:
    """Give the sums of scaled rows their magnitude."""
    with precision(EXACT_BITS):
        for i in np.flatnonzero(shifts).tolist():
            for column, degree in zip(columns, (1, 2, 0, 1), strict=False):  # powers of x in each sum
                column[i] = shifted(column[i], degree * int(shifts[i]))


def _by_extraction(rows: Rows) -> list[list[Ball]]:
    kit, x = rows.kit, rows.x
    if rows.unusual.any():  # their sums are replaced; here they must only stay in range
        x = kit.where(kit.device(rows.unusual)[:, None], 0.0, x)
    wanted = [[x], [x * x] if rows.narrow else list(two_product(x, x))]
    if needs_gradient(rows):
        gradient = _gradient(rows)
        wanted += [gradient, _products(gradient, x, narrow=rows.narrow)]
    with precision(EXACT_BITS):
        return [_total(kit, summands) for summands in wanted]


def _gradient(rows: Rows) -> list[Arrays]:
    """Return float64 arrays whose exact sum is grad_output * weight."""
    gradient = rows.grad_output
    if rows.unusual.any():
        gradient = rows.kit.where(rows.kit.device(rows.unusual)[:, None], 0.0, gradient)
    if rows.weight is None:
        return [gradient]
    weight = rows.weight
    if rows.unusual.any():
        weight = rows.kit.where(rows.kit.device(rows.unusual)[:, None], 0.0, weight)
    return [gradient * weight] if rows.narrow else list(two_product(gradient, weight))


def _products(gradient: list[Arrays], x: Arrays, *, narrow: bool) -> list[Arrays]:
    """Return float64 arrays whose exact sum is gradient * x."""
    if narrow:  # halves of 26 bits times 24 bits are exact
        return [half * x for half in split(gradient[0])]
    return [part for factor in gradient for part in two_product(factor, x)]


def _total(kit: Kit, summands: Sequence[Arrays]) -> list[Ball]:
    found = [exact_parts(kit, summand) for summand in summands]
    table = np.concatenate(found)
    totals = balls(table[0].tolist()) if len(table) else [ball(0.0)] * table.shape[1]
    for column in table[1:]:
        for i in np.flatnonzero(column).tolist():
            totals[i] += column.item(i)
    return totals


def _by_balls(rows: Rows, i: int) -> list[Ball]:
    """Return the sums of row i without any limit on exponents."""
    with precision(EXACT_BITS):
        x = balls(row_list(rows, rows.x, i))
        sums = [exact_sum(x), exact_sum(a * a for a in x)]
        if needs_gradient(rows):
            gradient = balls(row_list(rows, rows.grad_output, i))
            if rows.weight is not None:
                weight = row_list(rows, rows.weight, i)
                gradient = [g * w for g, w in zip(gradient, weight, strict=True)]
            sums += [exact_sum(gradient), exact_sum(g * a for g, a in zip(gradient, x, strict=True))]
    return sums


def row_list(rows: Rows, operand: Arrays, i: int) -> list[float]:
    """Return row i of a broadcastable operand as Python floats."""
    row = rows.kit.host(operand[i if operand.shape[0] > 1 else 0])
    return np.broadcast_to(row, (rows.shape[1],)).tolist()  # type: ignore[no-any-return]
