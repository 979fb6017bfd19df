"""Which entry of weight and bias an element belongs to, and sums over the elements of each entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from verifier.arithmetic.error_free.numpy_or_torch import Arrays, Kit
from verifier.oracle.rows.operands import Rows


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """A partition of the elements of (rows, columns) into entries.

    index: (rows, columns) of integers for kind "index", else None. `count` is the most elements
    that one entry has.
    """

    kit: Kit
    kind: Literal["columns", "rows", "index"]
    index: Arrays
    entries: int
    count: int

    def total(self, values: Arrays) -> Arrays:
        """Return the float64 sum of each entry, (entries,), in any order."""
        if self.kind == "index":
            return self.kit.totals(values, self.index, self.entries)
        return values.sum(0 if self.kind == "columns" else 1)

    def top(self, values: Arrays) -> Arrays:
        """Return the largest of the non-negative values of each entry, (entries,)."""
        if self.kind == "index":
            return self.kit.tops(values, self.index, self.entries)
        return self.kit.largest(values, 0 if self.kind == "columns" else 1)

    def spread(self, values: Arrays) -> Arrays:
        """Return one value of each entry, broadcastable to the elements."""
        if self.kind == "index":
            return values[self.index]
        return values[None, :] if self.kind == "columns" else values[:, None]

    def entry_of(self, row: int, columns: int) -> list[int]:
        """Return the entries of the first `columns` elements of a row."""
        if self.kind == "index":
            return np.asarray(self.kit.host(self.index)[row]).astype(int).tolist()  # type: ignore[no-any-return]
        return list(range(columns)) if self.kind == "columns" else [row] * columns


def grouping(rows: Rows) -> Grouping:
    """Return the partition that a problem names.

    Raises:
        ValueError: it is neither "columns", "rows" nor an array of entries of the input's shape.

    """
    extent, columns = rows.shape
    parameter = rows.parameter
    if isinstance(parameter, str):
        if parameter == "columns":
            return Grouping(kit=rows.kit, kind="columns", index=None, entries=columns, count=extent)
        if parameter == "rows":
            return Grouping(kit=rows.kit, kind="rows", index=None, entries=extent, count=columns)
        raise ValueError(f'parameter is "columns", "rows" or an index array, not {parameter!r}')
    index = np.asarray(parameter.cpu() if hasattr(parameter, "cpu") else parameter)
    if index.shape != rows.shape or index.dtype.kind not in "iu" or (index.size and index.min() < 0):
        raise ValueError(
            f"parameter has shape {index.shape} and dtype {index.dtype}: entries of {rows.shape} needed"
        )
    index = np.ascontiguousarray(index, dtype=np.int64)
    counts = np.bincount(index.ravel())
    most = int(counts.max()) if counts.size else 0
    return Grouping(kit=rows.kit, kind="index", index=rows.kit.device(index), entries=counts.size, count=most)


def rows_of(group: Grouping, first: int, last: int) -> Grouping:
    """Return the partition of the rows [first, last); for kind "rows" its entries are these rows."""
    if group.kind == "columns":
        return Grouping(kit=group.kit, kind="columns", index=None, entries=group.entries, count=last - first)
    if group.kind == "rows":
        return Grouping(kit=group.kit, kind="rows", index=None, entries=last - first, count=group.count)
    index = group.index[first:last]
    return Grouping(kit=group.kit, kind="index", index=index, entries=group.entries, count=group.count)
