"""Which entry of a parameter (weight, bias) each element of the input is multiplied with, or added to."""

from __future__ import annotations

import numpy as np

Index = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def element_entries(parameter: str | Index, rows: int, columns: int) -> Index:
    """Return the entry of each element, (rows, columns).

    parameter: "columns" or "rows", where entries follow these, or an array of entries that has the shape of
    the input or is broadcast to it.
    """
    if isinstance(parameter, np.ndarray):
        index: Index = parameter
    elif parameter == "rows":
        index = np.arange(rows, dtype=np.int64)[:, None]
    else:
        index = np.arange(columns, dtype=np.int64)[None, :]
    return np.broadcast_to(index, (rows, columns))
