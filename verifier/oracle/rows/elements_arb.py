"""The elements of a row as balls: the last rung, of any precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verifier.oracle.balls import Ball, balls
from verifier.oracle.rows.constants import RowConstants
from verifier.oracle.rows.exact_sums import row_list
from verifier.oracle.rows.operands import Rows


@dataclass(frozen=True, kw_only=True)
class RowElements:
    """The chosen elements of one row, as balls; the last two are empty without grad_output.

    contribution is grad_output * normalized, the summand of grad_weight.
    """

    output: Sequence[Ball]
    normalized: Sequence[Ball]
    grad_input: Sequence[Ball]
    contribution: Sequence[Ball]


def row_elements(
    rows: Rows, constants: RowConstants, i: int, columns: Sequence[int] | None = None
) -> RowElements:
    """Return the elements of row i, at the precision that is set; columns: which (None: all).

    Raises:
        ValueError: the row is refused (it has no rstd).

    """
    rstd = constants.rstd[i]
    if rstd is None:
        raise ValueError(f"row {i} has variance + eps <= 0")
    x = _chosen(rows, rows.x, i, columns)
    mean = constants.mean[i]
    normalized = [(a - mean) * rstd for a in x] if rows.centred else [a * rstd for a in x]
    weight = None if rows.weight is None else _chosen(rows, rows.weight, i, columns)
    output = normalized if weight is None else [h * w for h, w in zip(normalized, weight, strict=True)]
    if rows.bias is not None:
        output = [a + b for a, b in zip(output, _chosen(rows, rows.bias, i, columns), strict=True)]
    if rows.grad_output is None:
        return RowElements(output=output, normalized=normalized, grad_input=(), contribution=())
    gradient = _chosen(rows, rows.grad_output, i, columns)
    contribution = [d * h for d, h in zip(gradient, normalized, strict=True)]
    if weight is not None:
        gradient = [d * w for d, w in zip(gradient, weight, strict=True)]
    projection, offset = constants.projection[i], constants.offset[i]
    grad_input = [(g - (h * projection + offset)) * rstd for g, h in zip(gradient, normalized, strict=True)]
    return RowElements(output=output, normalized=normalized, grad_input=grad_input, contribution=contribution)


def _chosen(rows: Rows, operand: object, i: int, columns: Sequence[int] | None) -> list[Ball]:
    numbers = row_list(rows, operand, i)
    return balls(numbers if columns is None else (numbers[j] for j in columns))
