"""Numbers of rows for which a wrapper launches other code than for fewer rows of the same length.

A row has the same bits in every batch only if it has them in each of these, too: its sum may be another
program's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from verifier.cases.bounded_grids import BOUNDED
from verifier.cases.priced_shape import Reaching, compilation, price
from verifier.cases.unseen_by_launches import MANY, NUMBER
from verifier.records.planned_launches import AGAIN, SEVENFOLD, WRAPPER, Planned, ShapePoint

FEW_ROWS = 4
"""Rows beyond which it is news that an extent is more than 1."""
TELLING_COLUMNS = 33
"""Columns from which on another order of a sum shows: of a few numbers, too many sums are the same."""
MOST_BUILT = 6
"""Forms of a kernel for rows of one length, at most; of more, a constant of which is a number of rows, one is
wanted, that for the most rows."""
MOST = 60
"""Shapes that are looked for, at most."""
CONSTANT, FORM = 10, 1
"""How much it is worth that anything is new behind fewer rows, and that it is so at one more length."""


def launched_for_many(known: Mapping[ShapePoint, Planned]) -> tuple[Reaching, ...]:
    """Return shapes at which all is launched that is not for fewer rows, the most of it for the price first.

    First come those at which a kernel, or a constant of one, is new at all; the same for rows of another
    length comes later. Short rows are taken for what longer ones do not show.
    """
    demands = _demands(known)
    demands = _unless_there(demands, lambda p: p[1] >= TELLING_COLUMNS)
    demands = _unless_there(demands, lambda p: p[2] == 0)
    compiled: set[tuple[str, int]] = set()
    met: set[str] = set()
    found: list[Reaching] = []
    while len(found) < MOST:
        offers = (
            (_worth(point, new) / cost, -cost, (-point[0], -point[1], -point[2]))
            for point, wanted in demands.items()
            if (new := wanted - met) and (cost := _cost(point, known[point].compiled - compiled))
        )
        best = max(offers, default=None)
        if best is None:
            break
        _, cost, (rows, columns, variant) = best
        point = (-rows, -columns, -variant)
        found.append(Reaching(rows=point[0], columns=point[1], variant=point[2], seconds=round(-cost, 2)))
        met |= demands.pop(point)
        compiled |= known[point].compiled
    return tuple(found)


def _unless_there(
    demands: Mapping[ShapePoint, frozenset[str]], preferred: Callable[[ShapePoint], bool]
) -> dict[ShapePoint, frozenset[str]]:
    """Return the demands, those of points that are not preferred only where no preferred one has them."""
    shown = frozenset[str]().union(*(d for p, d in demands.items() if preferred(p)))
    return {p: d if preferred(p) else d - shown for p, d in demands.items()}


def _cost(point: ShapePoint, compiled: Iterable[tuple[str, int]]) -> float:
    return price(*point[:2]) + sum(compilation(width) for _, width in compiled)


def _worth(point: ShapePoint, new: Collection[str]) -> int:
    if point[1] < TELLING_COLUMNS:
        return FORM * len(new)
    return sum(FORM if one.endswith(_FORM) else CONSTANT for one in new)


_FORM = ")"
"""How the demand of a kernel with all of its constants ends."""


def _demands(known: Mapping[ShapePoint, Planned]) -> dict[ShapePoint, frozenset[str]]:
    """Return of each point what is launched that is not for fewer rows of that length."""
    lines: dict[tuple[int, int], list[ShapePoint]] = {}
    for point in sorted(known):
        if point[0] and not known[point].refused:
            lines.setdefault((point[1], point[2]), []).append(point)
    news: dict[ShapePoint, frozenset[str]] = {}
    for line in lines.values():
        for point, new in (*_features(known, line), *_built(known, line)):
            news[point] = news.get(point, frozenset()) | new
    return news


def _features(
    known: Mapping[ShapePoint, Planned], line: Iterable[ShapePoint]
) -> Iterator[tuple[ShapePoint, frozenset[str]]]:
    """Yield kernels, and classes of what they are given, that occur beyond few rows alone."""
    few: frozenset[str] = frozenset()
    for point in line:
        features = frozenset(f for f in known[point].features if _is_of_a_launch(f))
        if point[0] <= FEW_ROWS:
            few |= features if point[0] > 1 else frozenset()
        elif few:
            yield point, features - few


def _is_of_a_launch(feature: str) -> bool:
    """Return whether a feature is of a launch, and not how often a loop turns: of more rows, more often."""
    turns = ": loops over " in feature or feature.endswith((AGAIN, SEVENFOLD))
    return not turns and not feature.startswith((WRAPPER, NUMBER, BOUNDED, MANY))


def _built(
    known: Mapping[ShapePoint, Planned], line: Iterable[ShapePoint]
) -> Iterator[tuple[ShapePoint, frozenset[str]]]:
    """Yield constants of kernels, and all of one kernel together, that none of fewer rows has."""
    constants: dict[str, set[str]] = {}
    forms: dict[str, dict[tuple[str, ...], tuple[ShapePoint, frozenset[str]]]] = {}
    first = True
    for point in line:
        for kernel, built in sorted(known[point].built):
            before, several = constants.setdefault(kernel, set()), forms.setdefault(kernel, {})
            if built not in several:
                each = {f"{kernel} with {one}" for one in built if one not in before and before}
                several[built] = point, frozenset() if first else frozenset({*each, f"{kernel}{built}"})
                before.update(built)
        first = False
    for several in forms.values():
        found = [*several.values()]
        yield from found if len(found) <= MOST_BUILT else found[-1:]
