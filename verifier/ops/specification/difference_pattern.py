"""Words for which elements of an output differ: rows, columns, a tail, every k-th row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from verifier.oracle.enclosure import Mask

_SHOWN = 6
_MULTIPLES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Sizes that blocks of columns have."""


def pattern(unequal: Mask) -> str:
    """Describe a mask of differing elements, (rows, columns) or (entries,), by rows and columns."""
    if unequal.all():
        return "in every element"
    if unequal.ndim == 1:
        return _axis(unequal, "entry", "entries")
    rows, columns = np.asarray(unequal.any(axis=1)), np.asarray(unequal.any(axis=0))
    whole = bool((unequal == (rows[:, None] & columns[None, :])).all())
    parts = []
    if not rows.all():
        parts.append(_axis(rows, "row", "rows"))
    if not columns.all():
        parts.append(_axis(columns, "column", "columns"))
    text = " and ".join(parts) or "in scattered elements of all rows and columns"
    return text if whole or not parts else f"in some elements, {text}"


def _axis(differs: Mask, one: str, many: str) -> str:
    places, extent = np.flatnonzero(differs), len(differs)
    if len(places) == 1:
        last = " (the last)" if places[0] == extent - 1 else ""
        return f"in only {one} {int(places[0])}{last}"
    steps = np.unique(np.diff(places))
    if len(steps) == 1 and steps[0] > 1:
        return f"in every {int(steps[0])}th of the {extent} {many} from {int(places[0])} on (a lock group?)"
    if len(steps) == 1:
        first, final = int(places[0]), int(places[-1])
        tail = final == extent - 1 and any(first and first % m == 0 for m in _MULTIPLES)
        words = " (the tail beyond the last full block)" if tail else ""
        return f"in only {many} {first} to {final} of {extent}{words}"
    shown = ", ".join(str(int(p)) for p in places[:_SHOWN])
    more = ", ..." if len(places) > _SHOWN else ""
    return f"in only {len(places)} of {extent} {many} ({shown}{more})"
