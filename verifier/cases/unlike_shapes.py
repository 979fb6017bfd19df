"""Shapes at which a wrapper does in another way of calling what it does in it at no small shape.

A mode of torch, a choice of gradients or a first call may matter beyond a threshold alone. Dry runs in each
way say at a few points how they differ from plain calls there; what differs at the shapes that a check runs
anyway needs no other, and of the rest the cheapest shapes are looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from verifier.cases.priced_shape import CASE_SECONDS, Reaching, compilation, price
from verifier.records.planned_launches import WRAPPER, Planned, ShapePoint, Unlike

MOST_NAMED = 4
"""Shapes that are chosen for one check, at most, those without room in a budget included."""
MOST_OTHERS = 4
"""Of the shapes that reach launches in the plain call, how many are looked at, the most worth first."""
SMALL = 3
"""Rows, and columns, to which an extent shrinks if what differs still does."""

LookInWays = Callable[[Sequence[ShapePoint], Collection[str]], Mapping[str, Mapping[ShapePoint, Unlike]]]
"""Dry runs at points in the named ways (none named: in all): what differs, by way and point."""

_News = tuple[str, str, str]
"""The way, "more", "less" or "other", and what it is, in words."""


def ends_of(known: Mapping[ShapePoint, Planned]) -> tuple[ShapePoint, ...]:
    """Return the points with the most columns, rows and elements at which a plain call did not raise."""
    answered = [p for p, seen in known.items() if not seen.refused and p[2] == 0]
    rows = max((p for p in answered if p[1] <= SMALL), default=None)
    columns = max((p for p in answered if p[0] <= SMALL), key=lambda p: p[1], default=None)
    largest = max(answered, key=lambda p: (p[0] * p[1], p), default=None)
    return tuple(dict.fromkeys(p for p in (columns, rows, largest) if p is not None))


def points_for_ways(
    ends: Iterable[ShapePoint], chosen: Iterable[Reaching], numbers: Iterable[int]
) -> list[ShapePoint]:
    """Return the points to be looked at: those beyond every threshold, sides of numbers, a few chosen shapes.

    ends: as of `ends_of`. chosen: of the shapes that reach launches in the plain call, the most worth first.
    numbers: integers that the sources compare with. A dry run costs the same at any extents.
    """
    sides = [(n + more, n + more, 0) for n in numbers for more in (0, 1)]
    others = [(s.rows, s.columns, s.variant) for s in chosen if s.seconds <= CASE_SECONDS][:MOST_OTHERS]
    return [*dict.fromkeys((*ends, *sides, *others))]


def unlike_shapes(
    look: LookInWays,
    points: Sequence[ShapePoint],
    tried: Sequence[ShapePoint],
    plain: frozenset[str],
    allowed: Callable[[ShapePoint], bool],
) -> tuple[Reaching, ...]:
    """Return shapes where a way of calling differs as at none that is tried, the most worth first.

    tried: points that a check runs anyway. plain: all features of plain calls, anywhere: sizes that occur in
    one are nothing new.
    """
    search = _Search(look=look, tried=tried, plain=plain, allowed=allowed)
    search.see([*tried, *points])
    found: list[Reaching] = []
    met: set[_News] = set()
    compiled = {one for point in tried for one in search.compiled(point)}
    while len(found) < MOST_NAMED:
        offers = (
            (len(new) / search.cost(point, compiled), (-point[0], -point[1], -point[2]), frozenset(new))
            for point in search.points
            if (new := search.news(point) - met)
        )
        best = max(offers, key=lambda offer: offer[:2], default=None)
        if best is None:
            break
        _, (rows, columns, variant), wanted = best
        point = search.smallest((-rows, -columns, -variant), wanted)
        seconds = round(search.cost(point, compiled), 2)
        found.append(Reaching(rows=point[0], columns=point[1], variant=point[2], seconds=seconds, shows=True))
        met |= search.news(point)
        compiled |= search.compiled(point)
    return tuple(found)


class _Search:
    """What was seen of all ways, and what of it is new."""

    def __init__(
        self,
        *,
        look: LookInWays,
        tried: Sequence[ShapePoint],
        plain: frozenset[str],
        allowed: Callable[[ShapePoint], bool],
    ) -> None:
        self.look, self.tried, self.plain, self.allowed = look, tried, plain, allowed
        self.seen: dict[str, dict[ShapePoint, Unlike]] = {}
        self.looked: set[ShapePoint] = set()

    @property
    def points(self) -> list[ShapePoint]:
        """The points of which anything is known."""
        return [*dict.fromkeys(point for at in self.seen.values() for point in at)]

    def see(self, points: Iterable[ShapePoint], ways: Collection[str] = ()) -> None:
        """Look at points that are allowed and not known."""
        new = [p for p in dict.fromkeys(points) if p not in self.looked and self.allowed(p)]
        self.looked.update(new)
        for way, at in (self.look(new, ways) if new else {}).items():
            self.seen.setdefault(way, {}).update(at)

    def news(self, point: ShapePoint) -> frozenset[_News]:
        """Return what differs at a point and at none that is tried."""
        return frozenset(n for way, at in self.seen.items() if point in at for n in self._of(way, at[point]))

    def _of(self, way: str, unlike: Unlike) -> Iterator[_News]:
        at = self.seen[way]
        usual = [at[point] for point in self.tried if point in at]
        ran = frozenset[str]().union(*(one.ran for one in usual))
        for one in unlike.more.difference(*(u.more for u in usual)):
            if not (_is_size(one) and one in self.plain):
                yield way, "more", one
        for one in unlike.less.difference(*(u.less for u in usual)):
            if one in ran and not _is_feature(one):
                yield way, "less", one
        for one in unlike.other.difference(*(u.other for u in usual)):
            yield way, "other", one

    def smallest(self, point: ShapePoint, wanted: frozenset[_News]) -> ShapePoint:
        """Return small extents at which all that is wanted still differs."""
        ways = {way for way, _, _ in wanted}

        def shows(one: ShapePoint) -> bool:
            self.see([one], ways)
            return wanted <= self.news(one)

        for axis in (0, 1):
            low, high = SMALL, point[axis]
            while low < high:
                middle = low if high == point[axis] and low == SMALL else (low + high) // 2
                one = (middle, point[1], point[2]) if axis == 0 else (point[0], middle, point[2])
                if shows(one):
                    high = middle
                else:
                    low = middle + 1
            point = (high, point[1], point[2]) if axis == 0 else (point[0], high, point[2])
        return point

    def compiled(self, point: ShapePoint) -> frozenset[tuple[str, int]]:
        """Return the compilations that a point needs in any way."""
        return frozenset[tuple[str, int]]().union(
            *(at[point].compiled for at in self.seen.values() if point in at)
        )

    def cost(self, point: ShapePoint, compiled: Collection[tuple[str, int]]) -> float:
        """Return the estimated seconds of a case."""
        new = {one for one in self.compiled(point) if one not in compiled}
        return price(*point[:2]) + sum(compilation(width) for _, width in new)


def _is_feature(one: str) -> bool:
    """Return whether it is a feature of a launch, and no kernel, statement or operation."""
    return ": " in one and not one.startswith(WRAPPER)


def _is_size(one: str) -> bool:
    """Return whether it is a feature that says how large something is, and not what was chosen."""
    return _is_feature(one) and " is " not in one
