"""Sums over rows for each entry of a parameter, which blocks of rows may bring one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verifier.arithmetic.formats import Array
from verifier.bounds.affine_value import Affine
from verifier.bounds.parameter_entries import Index, element_entries


@dataclass(frozen=True, kw_only=True)
class EntryTotals:
    """What is known of the elements of each entry, summed over them, each (1, entries).

    centre, slack, magnitude, error: of the parts of `Affine`, and of its total. unlimited: how many elements
    have no bound. reasons: why they have none.
    """

    centre: Array
    slack: Array
    magnitude: Array
    error: Array
    unlimited: Array
    reasons: frozenset[str]


def entry_totals(
    value: Affine,
    parameter: str | Index,
    shape: tuple[int, int],
    entries: int,
    before: EntryTotals | None = None,
) -> EntryTotals:
    """Return the totals of a value of this shape, (rows, columns); parameter: see `element_entries`.

    before: totals of rows that come before these, where entries follow the columns. Rows are added one after
    the other then, as NumPy adds those of one array.

    Raises:
        ValueError: there are rows before these, and entries do not follow the columns.

    """
    by_columns = isinstance(parameter, str) and parameter == "columns"
    index = element_entries(parameter, *shape)
    if before is not None and not by_columns:
        raise ValueError("rows are added to those before them where entries follow the columns alone")

    def total(part: str, values: Array) -> Array:
        if by_columns:
            added = values if before is None else np.concatenate((getattr(before, part), values))
            return np.asarray(added.sum(axis=0, keepdims=True))
        sums = np.bincount(index.ravel(), weights=values.ravel(), minlength=entries)
        return np.asarray(sums.reshape(1, -1), dtype=np.float64)

    return EntryTotals(
        centre=total("centre", value.centre),
        slack=total("slack", value.slack),
        magnitude=total("magnitude", value.magnitude),
        error=total("error", value.total),
        unlimited=total("unlimited", np.asarray(~np.isfinite(value.total), dtype=np.float64)),
        reasons=value.reasons if before is None else value.reasons | before.reasons,
    )
