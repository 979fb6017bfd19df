"""A whole row problem in Arb: slow, certain, of any precision."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from verifier.oracle.balls import Ball, ball, enclose, precision
from verifier.oracle.enclosure import Enclosure, undefined
from verifier.oracle.rows.constants import RowConstants
from verifier.oracle.rows.elements_arb import RowElements, row_elements
from verifier.oracle.rows.exact_sums import row_list
from verifier.oracle.rows.operands import Rows
from verifier.oracle.rows.parameters import Grouping


def element_enclosures(
    rows: Rows, constants: RowConstants, bits: int, group: Grouping
) -> dict[str, Enclosure]:
    """Return output, normalized and, with grad_output, the gradients, by name.

    Refused rows have infinite radius, and with them the entries of weight that they belong to.
    """
    extent, columns = rows.shape
    with precision(bits):
        table = [
            None if constants.rstd[i] is None else row_elements(rows, constants, i) for i in range(extent)
        ]
        names = ("output", "normalized") + (("grad_input",) if rows.grad_output is not None else ())
        found = {name: _stack([_row(name, row, columns) for row in table], extent, columns) for name in names}
        if rows.grad_output is not None:
            found["grad_weight"] = _grad_weight(table, group, columns)
            found["grad_bias"] = _grad_bias(rows, group)
    return found


def _row(name: str, row: RowElements | None, columns: int) -> Enclosure:
    return undefined((columns,), refused=True) if row is None else enclose(getattr(row, name), (columns,))


def _stack(found: Sequence[Enclosure], extent: int, columns: int) -> Enclosure:
    parts = (
        np.array([getattr(row, part) for row in found]).reshape(extent, columns)
        for part in ("high", "low", "radius")
    )
    return Enclosure(**dict(zip(("high", "low", "radius"), parts, strict=True)))


def _grad_weight(table: Sequence[RowElements | None], group: Grouping, columns: int) -> Enclosure:
    totals: list[Ball] = [ball(0.0) for _ in range(group.entries)]
    refused = np.zeros(group.entries, dtype=bool)
    for i, row in enumerate(table):
        entries = group.entry_of(i, columns)
        if row is None:
            refused[entries] = True
            continue
        for entry, value in zip(entries, row.contribution, strict=True):
            totals[entry] += value
    found = enclose(totals, (group.entries,))
    return Enclosure(high=found.high, low=found.low, radius=np.where(refused, np.inf, found.radius))


def _grad_bias(rows: Rows, group: Grouping) -> Enclosure:
    totals: list[Ball] = [ball(0.0) for _ in range(group.entries)]
    for i in range(rows.shape[0]):
        for entry, value in zip(
            group.entry_of(i, rows.shape[1]), row_list(rows, rows.grad_output, i), strict=True
        ):
            totals[entry] += value
    return enclose(totals, (group.entries,))
