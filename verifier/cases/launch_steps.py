"""Where launches change: neighbouring extents that are launched differently, and where such steps cross."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from verifier.cases.priced_shape import CASE_SECONDS, price
from verifier.records.planned_launches import Planned, ShapePoint

MOST_CROSSINGS = 400
"""Points where steps of rows and of columns cross that are looked at, the smallest first."""


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """Two neighbours that are launched differently; their extents differ along one axis."""

    low: ShapePoint
    high: ShapePoint

    @property
    def gap(self) -> int:
        """How far apart they lie."""
        return sum(self.high) - sum(self.low)

    @property
    def middle(self) -> ShapePoint:
        """The point between them."""
        rows, columns = ((a + b) // 2 for a, b in zip(self.low[:2], self.high[:2], strict=True))
        return rows, columns, self.low[2]


def to_be_narrowed(known: Mapping[ShapePoint, Planned]) -> list[Neighbours]:
    """Return a wide step, the cheapest, for each feature that comes or goes where no close one shows it."""
    wide: dict[object, Neighbours] = {}
    close: set[object] = set()
    for axis in (0, 1):
        for step in neighbours(known, axis):
            low, high = known[step.low].features, known[step.high].features
            if low == high:
                continue
            changes = [(axis, "comes", f) for f in high - low] + [(axis, "goes", f) for f in low - high]
            if step.gap == 1:
                close.update(changes)
                continue
            for change in changes:
                if change not in wide or _size(step) < _size(wide[change]):
                    wide[change] = step
    steps = dict.fromkeys(step for change, step in wide.items() if change not in close)
    return sorted(steps, key=_size)


def neighbours(known: Iterable[ShapePoint], axis: int) -> Iterator[Neighbours]:
    """Yield all neighbours along an axis: 0 for rows, 1 for columns."""
    lines: dict[tuple[int, int], list[ShapePoint]] = {}
    for point in known:
        lines.setdefault((point[1 - axis], point[2]), []).append(point)
    for line in lines.values():
        for low, high in pairwise(sorted(line, key=lambda p: p[axis])):
            yield Neighbours(low=low, high=high)


def close_steps(known: Mapping[ShapePoint, Planned]) -> list[tuple[Neighbours, int]]:
    """Return the steps that are known to the row or column, each with its axis."""
    return [
        (step, axis)
        for axis in (0, 1)
        for step in neighbours(known, axis)
        if step.gap == 1 and known[step.low].features != known[step.high].features
    ]


def _size(step: Neighbours) -> tuple[int, int, ShapePoint]:
    """Order steps by what it costs to run the larger of their points; narrow ones first."""
    rows, columns, _ = step.high
    return rows * columns, step.gap, step.low


def crossings(known: Mapping[ShapePoint, Planned]) -> list[ShapePoint]:
    """Return where the steps along one axis cross those along the other: the least extents beyond both."""
    steps = close_steps(known)
    rows, columns = (
        sorted({end[axis] for step, other in steps if other == axis for end in (step.low, step.high)})
        for axis in (0, 1)
    )
    crossing = [(r, c, 0) for r in rows for c in columns if price(r, c) <= CASE_SECONDS]
    return sorted(crossing, key=lambda point: (point[0] * point[1], point))[:MOST_CROSSINGS]
