"""Shapes that reach what a wrapper can launch: found by dry runs at many extents.

Extents are tried on a ladder; where neighbours are launched differently, bisection finds the step. Which of
all that was seen are run, `covering_shapes` chooses. Nothing here depends on a clock: the same sources give
the same list everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from verifier.cases.bounded_grids import beyond_bounded_grids
from verifier.cases.covering_shapes import TELLING_COLUMNS
from verifier.cases.launch_steps import close_steps, crossings, neighbours, to_be_narrowed
from verifier.cases.priced_shape import Reaching, compilation, price
from verifier.cases.tried_extents import (
    in_other_bytes,
    ladder,
    near_literals,
    pairs_of_literals,
    possible,
    short_ladder,
)
from verifier.cases.unseen_by_launches import (
    MANY_ROWS,
    Constants,
    beyond_even_step,
    of_many_rows,
    sides_of_numbers,
    want_many_rows,
    with_feature,
)
from verifier.machine.model import MAX_GRID_YZ
from verifier.ops import rows_and_columns
from verifier.records.planned_launches import Planned, ShapePoint

MOST_POINTS = 2400
"""Points that are looked at until steps are known; where they cross, `MOST_CROSSINGS` more."""
MOST_REFUSED = 1 << 21
"""Elements of a case whose launch is to be refused, at most: it has tensors, though no kernel runs."""
MOST_FAILING = 3
"""Kinds of errors, at most, of which a case is run each."""
PLAIN = ((1, 16385), (2049, 3), (32769, 3))
"""Rows and columns that stand for the ends of the ladder where no dry run tells what is launched.

Not wider: wrappers refuse 65537 columns, and without a dry run nobody knows which.
"""
Look = Callable[[Sequence[ShapePoint]], Sequence[Planned]]
"""Dry runs at points, in their order; it may return fewer and end the search so."""


def seen_around(  # noqa: PLR0917 (what is looked at, and around what)
    look: Look,
    allowed: Callable[[ShapePoint], bool],
    variants: int,
    literals: Callable[[], Iterable[int]],
    like: Sequence[Reaching] = (),
    compared: Sequence[int] = (),
    at: Callable[[int, int], Iterator[ShapePoint]] = rows_and_columns,
    wanted: Mapping[ShapePoint, str] = MappingProxyType({}),
) -> dict[ShapePoint, Planned]:
    """Look at a ladder of extents, and wherever launches change; return what was seen.

    allowed: the points that may be asked for. literals: integers of the sources, known after a first look.
    like: shapes that reach all of the same subject in another dtype; then a short ladder does, and points
    around these: thresholds in bytes lie at half or twice as many columns. compared: integers that kernels
    compare with: what they decide no launch tells, so that both of their sides are wanted. at: shapes of
    which two integers of the sources are extents. wanted: further points, each with what it shows.
    """
    known: dict[ShapePoint, Planned] = {}

    def see(points: Iterable[ShapePoint]) -> None:
        new = [p for p in dict.fromkeys(points) if p not in known and possible(p) and allowed(p)]
        known.update(zip(new, look(new) if new else (), strict=False))
        known.update(constants.kept(known, new))

    constants = Constants()
    see([*short_ladder(variants), *in_other_bytes(like)] if like else ladder(variants))
    if not like:
        integers = [*literals()]
        see(near_literals(integers))
        see(pairs_of_literals(integers, at))
    while len(known) < MOST_POINTS:
        before = len(known)
        see([step.middle for step in to_be_narrowed(known)][: MOST_POINTS - before])
        if len(known) == before:
            break
    see(crossings(known))
    further = [p for p in _towards_the_limit(known) if p not in known and allowed(p)]
    known.update(zip(further, look(further) if further else (), strict=False))
    steps = close_steps(known)
    see([p for step, axis in steps if (p := beyond_even_step(step.high, axis)) is not None])
    by_rows = want_many_rows(step.low[0] for step, axis in steps if axis == 0)
    sides = {**wanted, **sides_of_numbers(compared)}
    see([*sides, *([MANY_ROWS] if by_rows else [])])
    besides = [*sides.items(), *(of_many_rows(known).items() if by_rows else ())]
    besides += [(p, f) for p, each in beyond_bounded_grids(known, see, TELLING_COLUMNS).items() for f in each]
    for point, feature in besides:
        if point in known:
            known[point] = with_feature(known[point], feature)
    return known


def _towards_the_limit(known: Mapping[ShapePoint, Planned]) -> Iterator[ShapePoint]:
    """Yield a point for each axis along which a grid grows in y or z, where it goes beyond what there can be.

    None where one is known that does, and none of more elements than can be run: the launch is to be refused
    by the machine itself.
    """
    if _beyond_the_limit(known):
        return
    for axis in (0, 1):
        further = []
        for step in neighbours(known, axis):
            low, high = known[step.low], known[step.high]
            if high.widest > max(low.widest, 1) and not high.refused:
                rows, columns, variant = step.high
                times = MAX_GRID_YZ // (high.widest - 1) + 1  # its last block may have little to do
                by = (times, 1) if axis == 0 else (1, times)
                further.append((rows * by[0], columns * by[1], variant))
        yield from sorted(further, key=_elements)[:1]


def _beyond_the_limit(known: Mapping[ShapePoint, Planned]) -> list[ShapePoint]:
    """Return points with a grid that no device launches, the smallest first."""
    points = [p for p, seen in known.items() if seen.widest > MAX_GRID_YZ and not seen.refused]
    return sorted((p for p in points if p[0] * p[1] <= MOST_REFUSED), key=_elements)


def _elements(point: ShapePoint) -> tuple[int, ShapePoint]:
    return point[0] * point[1], point


def too_wide(known: Mapping[ShapePoint, Planned]) -> list[Reaching]:
    """Return the smallest shape whose launch a device refuses, for its grid is too wide in y or z, if any.

    Its price is that of a compilation: no block runs and nothing is judged.
    """
    return [
        Reaching(rows=rows, columns=columns, variant=variant, seconds=compilation(0))
        for rows, columns, variant in _beyond_the_limit(known)[:1]
    ]


def failing(known: Mapping[ShapePoint, Planned]) -> list[Reaching]:
    """Return the smallest shape of each kind of error that ends a call and is no refusal, a few at most.

    Whether the error is the wrapper's or the dry run's is for the case to show.
    """
    first: dict[str, ShapePoint] = {}
    for point in sorted((p for p, seen in known.items() if seen.fails), key=_elements):
        words = "".join(c for c in known[point].refused if c.isalpha())
        first.setdefault(words, point)
    points = [p for p in first.values() if p[0] * p[1] <= MOST_REFUSED][:MOST_FAILING]
    return [
        Reaching(rows=r, columns=c, variant=v, seconds=round(compilation(0) + price(r, c), 2))
        for r, c, v in points
    ]
