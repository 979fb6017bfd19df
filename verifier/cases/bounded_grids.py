"""Where a grid no longer grows with the extents: from there on, blocks have to go through more than before.

A kernel that does not leaves rows out, and no loop that would turn again tells where.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from verifier.records.planned_launches import Planned, ShapePoint

BOUNDED = "bounded grid: "
"""How the feature begins that an extent lies beyond that where a grid has as many blocks as it ever has."""
LEAST_BEYOND = 16
"""Rows or columns beyond it, at least: as many as blocks usually have, so that some block has none left."""
SHARE_BEYOND = 16
"""One of so many of the extent's elements, at least."""

_AXES = ("rows", "columns")
_ALONG = "xyz"
_Line = tuple[int, int, int]
"""The axis along which it goes (0 for rows, 1 for columns), the other extent and the variant."""


@dataclass(frozen=True, kw_only=True)
class _Growth:
    """How an extent of a grid goes with an extent of the input along a line, the smallest first."""

    line: _Line
    sizes: tuple[tuple[int, int], ...]

    @property
    def end(self) -> tuple[int, int] | None:
        """The last extent at which it is known to grow, and the first at which it has its last size.

        None where it always has that size, or has it nowhere but at the end.
        """
        last = self.sizes[-1][1]
        smaller = [extent for extent, size in self.sizes if size < last]
        if not smaller:
            return None
        full = [extent for extent, size in self.sizes if size == last]
        falls = any(size > last for _, size in self.sizes)
        return (smaller[-1], full[0]) if len(full) > 1 and not falls else None

    def point(self, extent: int) -> ShapePoint:
        """Return the point of the line at an extent."""
        axis, other, variant = self.line
        return (extent, other, variant) if axis == 0 else (other, extent, variant)


def beyond_bounded_grids(
    known: Mapping[ShapePoint, Planned], see: Callable[[Iterable[ShapePoint]], None], telling: int
) -> dict[ShapePoint, set[str]]:
    """Find where grids stop to grow; return which points lie beyond, each with what it shows.

    see: looks at points, which are in `known` then if they may be asked for. telling: columns from which on
    numbers tell anything. Each grid is looked at along the first line of so many on which it stops to grow.
    """
    found: dict[ShapePoint, set[str]] = defaultdict(set)
    for name, axis in sorted((name, axis) for name in _names(known) for axis in range(len(_AXES))):
        growth = _narrowed(name, axis, known, see, telling)
        if growth is not None and growth.end is not None:
            see([growth.point(beyond(growth.end[1]))])
        feature = f"{BOUNDED}{name} along {_AXES[axis]}"
        for one in _growths(known, name, axis).values():
            if (end := one.end) is not None:
                for extent, _ in one.sizes:
                    if extent >= beyond(end[1]):
                        found[one.point(extent)].add(feature)
    return found


def beyond(extent: int) -> int:
    """Return the extent to try beyond that at which a grid has all its blocks."""
    return extent + max(LEAST_BEYOND, extent // SHARE_BEYOND)


def _narrowed(
    name: str,
    axis: int,
    known: Mapping[ShapePoint, Planned],
    see: Callable[[Iterable[ShapePoint]], None],
    telling: int,
) -> _Growth | None:
    """Bisect where a grid stops to grow, on the shortest line where it does; return how it grows there."""
    lines = [line for line, one in _growths(known, name, axis).items() if one.end]
    if not lines:
        return None
    growth = _along(name, min(lines, key=lambda line: (axis == 0 and line[1] < telling, line)), known)
    while growth.end is not None and growth.end[1] - growth.end[0] > 1:
        middle = growth.point(sum(growth.end) // 2)
        see([middle])
        narrower = _along(name, growth.line, known)
        if narrower.end == growth.end:  # it may not be asked for, or tells nothing
            break
        growth = narrower
    return growth


def _along(name: str, line: _Line, known: Mapping[ShapePoint, Planned]) -> _Growth:
    axis, other, variant = line
    mine = {p: seen for p, seen in known.items() if p[1 - axis] == other and p[2] == variant}
    return _growths(mine, name, axis)[line]


def _names(known: Mapping[ShapePoint, Planned]) -> set[str]:
    """Return which extents there are: of which kernel's grid along what."""
    return {
        f"{kernel} {along}"
        for seen in known.values()
        for kernel, grid in (seen.grids.items() if not seen.refused else ())
        for along, _ in zip(_ALONG, grid, strict=False)
    }


def _growths(known: Mapping[ShapePoint, Planned], name: str, axis: int) -> dict[_Line, _Growth]:
    """Return how one extent of a grid goes along each line of points that goes along an axis."""
    kernel, _, along = name.rpartition(" ")
    place = _ALONG.index(along)
    sizes: dict[_Line, list[tuple[int, int]]] = defaultdict(list)
    for point in sorted(known):
        seen = known[point]
        grid = () if seen.refused else seen.grids.get(kernel, ())
        if place < len(grid):
            sizes[axis, point[1 - axis], point[2]].append((point[axis], grid[place]))
    return {line: _Growth(line=line, sizes=tuple(found)) for line, found in sizes.items()}
