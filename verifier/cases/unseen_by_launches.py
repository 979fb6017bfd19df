"""Extents at which a kernel may go wrong though nothing that it is launched with tells them apart.

Sizes are left out of what tells launches apart. So what follows from a size alone is named here: a number
that a kernel compares with or a table of the wrapper is looked up by, a block that is full in part, the last
turns of a loop that is written out, so many rows that what was made for fewer has no room for them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from verifier.records.planned_launches import VALUE, Planned, ShapePoint

NUMBER = "number: "
"""How the feature begins that an extent lies on a side of a number that kernels compare with."""
MANY = "many: "
"""How the feature begins that there are very many rows."""
MANY_ROWS = (33_001, 3, 0)
"""So many rows, an odd number, are tried where something depends on them, be it from 3 on.

Sums over rows go in two stages, and what the second has room for follows from products of sizes that no
source names: 512 programs of at most 4 rows, 128 parts of 64.
"""
LEAST_BLOCKED = 4
"""Extents that blocks of several rows, or columns, are made for, at least: one differs from two anyway."""
MOST_VALUES = 3
"""Numbers that one argument is given at all points, at most, if it is no function of the extents."""


def sides_of_numbers(numbers: Iterable[int]) -> dict[ShapePoint, str]:
    """Return small shapes of so many rows, or columns, and of one more, each with what it shows."""
    return {
        point: f"{NUMBER}{number + more} {axis}"
        for number in numbers
        for more in (0, 1)
        for axis, point in (("rows", (number + more, 3, 0)), ("columns", (3, number + more, 0)))
    }


def lengths_in_tables(numbers: Iterable[int]) -> dict[ShapePoint, str]:
    """Return small shapes of so many columns, each with what it shows."""
    return {(3, number, 0): f"{NUMBER}{number} columns" for number in numbers}


def long_diagonals(points: Iterable[ShapePoint]) -> dict[ShapePoint, str]:
    """Return shapes in which some row takes part in a tile more than the one before, with what each shows."""
    return {point: f"{NUMBER}{point[0]} rows and columns" for point in points}


def want_many_rows(steps: Iterable[int]) -> bool:
    """Return whether very many rows are to be tried, by the rows up to which launches are alike.

    Not where only one row differs from two, nor where a step lies beyond: both its sides are tried.
    """
    limits = set(steps)
    return any(limit > 1 for limit in limits) and max(limits) < MANY_ROWS[0]


def of_many_rows(known: Iterable[ShapePoint]) -> dict[ShapePoint, str]:
    """Return the points with very many rows, an odd number, each with what it shows."""
    return {p: f"{MANY}rows" for p in known if p[0] >= MANY_ROWS[0] and p[0] % 2 and p[2] == 0}


def with_feature(seen: Planned, feature: str) -> Planned:
    """Return what was seen with one more feature, in the forward pass as well; nothing has none."""
    forward = None if seen.forward is None else with_feature(seen.forward, feature)
    return replace(seen, features=seen.features | {feature}, forward=forward) if seen.features else seen


def beyond_even_step(high: ShapePoint, axis: int) -> ShapePoint | None:
    """Return the point one beyond the upper side of a step, where that is even, else None.

    With `rows >= 4096` the first shape of a new form fills blocks of 2, 4, 8 rows; only another leaves the
    last of them full in part.
    """
    if high[axis] % 2 or high[axis] < LEAST_BLOCKED:
        return None
    rows, columns, variant = high
    return (rows + 1, columns, variant) if axis == 0 else (rows, columns + 1, variant)


def sevenfold(widths: Iterable[int]) -> Iterator[int]:
    """Yield lengths of which the last of seven tiles is full but for one element.

    Seven is a whole turn and the longest rest for a loop of which four turns, or two, are written out.
    """
    yield from (7 * width - 1 for width in widths)


@dataclass(kw_only=True)
class Constants:
    """Tells floating-point arguments that are settings from those that follow from extents, such as 1/N."""

    _values: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _sizes: set[str] = field(default_factory=set)

    def kept(
        self, known: Mapping[ShapePoint, Planned], new: Sequence[ShapePoint]
    ) -> dict[ShapePoint, Planned]:
        """Return what is to be replaced: points that show the value of an argument that follows from extents.

        new: points of `known` that were not among them the last time.
        """
        before = len(self._sizes)
        for point in new:
            for name, value in _valued(known[point].features) if point in known else ():
                self._values[name].add(value)
        self._sizes |= {name for name, values in self._values.items() if len(values) > MOST_VALUES}
        looked_at = known if len(self._sizes) > before else new
        return {p: self._without_sizes(known[p]) for p in looked_at if p in known} if self._sizes else {}

    def _without_sizes(self, seen: Planned) -> Planned:
        gone = {f"{name}{VALUE}{value}" for name, value in _valued(seen.features) if name in self._sizes}
        if not gone:
            return seen
        forward = None if seen.forward is None else self._without_sizes(seen.forward)
        return replace(seen, features=seen.features - gone, forward=forward)


def _valued(features: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the arguments whose values are told, and these."""
    for feature in features:
        name, told, value = feature.partition(VALUE)
        if told:
            yield name, value
