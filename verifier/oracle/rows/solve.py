"""The exact answer of a row normalization, forward and backward, with certified radii."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from verifier.arithmetic.lazy_fields import Later
from verifier.arithmetic.row_statistics import RowStatistics
from verifier.oracle.balls import Ball, ball, enclose, precision
from verifier.oracle.enclosure import Enclosure, Mask
from verifier.oracle.problem import RowOperands, RowSolution, Rung
from verifier.oracle.rows import solve_arb, solve_fast
from verifier.oracle.rows.constants import RowConstants, row_constants
from verifier.oracle.rows.exact_sums import RowSums, row_sums
from verifier.oracle.rows.operands import Rows, collect
from verifier.oracle.rows.parameters import Grouping, grouping
from verifier.oracle.rows.solve_fast import FastRung
from verifier.oracle.rows.statistics import row_statistics

ARB_BITS = 256
"""First precision of the Arb rung."""
FAST_BITS = 256
"""Precision of the row constants of the fast rungs: three parts of a mean hold 159 bits."""


def solve_rows(problem: RowOperands, rung: Rung, bits: int | None) -> RowSolution:
    """Return the exact answer of a row normalization, enclosed; see `verifier.oracle.solve.solve`.

    Raises:
        ValueError: shapes that do not fit.

    """
    rows = collect(problem)
    group = grouping(rows)
    sums = row_sums(rows, fast=rung != "arb")
    working = bits or ARB_BITS
    constants = row_constants(rows, sums, working if rung == "arb" else max(working, FAST_BITS))
    if rung == "arb" or not rows.shape[0] or not rows.shape[1]:
        found = solve_arb.element_enclosures(rows, constants, working, group)
    else:
        level: FastRung = "double_double" if rung == "double_double" else "float64"
        rescue = working if rung == "auto" else None
        found = solve_fast.element_enclosures(rows, constants, group, level, rescue_bits=rescue)
    return _solution(rows, group, sums, constants, found=found, bits=working)


def statistics(input: object) -> RowStatistics:
    """Return the certified statistics of each row of input: (rows, columns)."""
    rows = collect(RowOperands(input=input, eps=1.0))
    return row_statistics(rows, row_sums(rows), None)


def _solution(
    rows: Rows,
    group: Grouping,
    sums: RowSums,
    constants: RowConstants,
    *,
    found: dict[str, Enclosure],
    bits: int,
) -> RowSolution:
    known = (constants.mean, constants.variance) if rows.own and rows.centred else None
    scalars = {name: _scalar(rows, getattr(constants, name), bits) for name in ("mean", "variance", "rstd")}
    masked = dict(_masked(rows, group, found))
    return RowSolution(
        **scalars,
        output=masked["output"],
        normalized=masked["normalized"],
        grad_input=masked.get("grad_input"),
        grad_weight=masked.get("grad_weight"),
        grad_bias=masked.get("grad_bias"),
        statistics=row_statistics(rows, sums, known),
    )


def _scalar(rows: Rows, values: Sequence[Ball | None], bits: int) -> Enclosure:
    """Return the enclosures of one number a row, made when they are read: few readers want them."""

    @cache
    def made() -> Enclosure:
        refused = np.array([value is None for value in values], dtype=bool)
        with precision(bits):
            found = enclose([ball(0.0) if value is None else value for value in values], (rows.shape[0],))
        radius = np.where(refused, np.inf, found.radius)
        return _hide(Enclosure(high=found.high, low=found.low, radius=radius), rows.bad_rows)

    return Enclosure(
        high=Later(lambda: made().high), low=Later(lambda: made().low), radius=Later(lambda: made().radius)
    )


def _masked(rows: Rows, group: Grouping, found: dict[str, Enclosure]) -> dict[str, Enclosure]:
    """Return the enclosures with NaN where a non-finite input leaves no exact value."""
    if not rows.bad_rows.any() and rows.bad_output is None and rows.bad_grad is None:
        return found
    bad_rows = rows.bad_rows[:, None]
    bad_output = bad_rows if rows.bad_output is None else bad_rows | rows.bad_output
    lost_grad: Mask = np.zeros((1, 1), dtype=bool) if rows.bad_grad is None else rows.bad_grad
    if not rows.constant_statistics:  # means over the row reach all of it
        lost_grad = np.asarray(lost_grad.any(1, keepdims=True))
    bad_grad = bad_rows | lost_grad
    masks: dict[str, Mask] = {"output": bad_output, "normalized": bad_rows, "grad_input": bad_grad}
    if rows.grad_output is not None:
        lost = np.zeros(rows.shape, dtype=bool) if rows.bad_gradient is None else rows.bad_gradient
        masks["grad_bias"] = _entries(rows, group, lost)
        masks["grad_weight"] = _entries(rows, group, lost | bad_rows)
    return {name: _hide(value, masks[name]) for name, value in found.items()}


def _entries(rows: Rows, group: Grouping, elements: Mask) -> Mask:
    counts = group.total(rows.kit.device(np.broadcast_to(elements, rows.shape).astype(np.float64)))
    return np.asarray(rows.kit.host(counts) > 0)


def _hide(value: Enclosure, mask: Mask) -> Enclosure:
    """Return the enclosure with NaN at the masked elements."""
    if not mask.any():
        return value
    return Enclosure(
        high=np.where(mask, np.nan, value.high),
        low=np.where(mask, np.nan, value.low),
        radius=np.where(mask, np.nan, value.radius),
    )
