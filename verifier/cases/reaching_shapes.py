"""Shapes that reach what a wrapper can launch: found by dry runs at many extents, chosen to be few and cheap.

Extents are tried on a ladder; where neighbours are launched differently, bisection finds the step. Of all
that was seen, a few shapes are chosen in which everything occurs that tells launches apart, and which lie on
both sides of each step. Nothing here depends on a clock: the same sources give the same list everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise

from verifier.cases.bounded_grids import BOUNDED, beyond_bounded_grids
from verifier.cases.unseen_by_launches import (
    MANY,
    MANY_ROWS,
    NUMBER,
    Constants,
    beyond_even_step,
    of_many_rows,
    sevenfold,
    sides_of_numbers,
    want_many_rows,
    with_feature,
)
from verifier.cases.variations import Variation
from verifier.machine.model import MAX_GRID_YZ
from verifier.ops import rows_and_columns
from verifier.records.planned_launches import AGAIN, SEVENFOLD, WRAPPER, Planned, ShapePoint

MOST_ROWS, MOST_COLUMNS, MOST_ELEMENTS = 1 << 17, 1 << 20, 1 << 32
"""Extents that are looked at, at most."""
MOST_POINTS = 2400
"""Points that are looked at until steps are known; where they cross, `MOST_CROSSINGS` more."""
MOST_CROSSINGS = 400
"""Points where steps of rows and of columns cross that are looked at, the smallest first."""
MOST_LITERALS = 24
"""Integers of the sources that are tried as extents, the smallest first."""
MOST_PAIRED = 12
"""Of these, how many are tried as rows beside each other as columns."""
MULTIPLES = (1, 2, 3)
"""Of a literal: what goes by a remainder shows at them."""
CASE_SECONDS = 15.0
"""Shapes beyond are never run: a case has a limit, and a slow one is not to look like one that hangs."""
MOST_REFUSED = 1 << 21
"""Elements of a case whose launch is to be refused, at most: it has tensors, though no kernel runs."""
MOST_FAILING = 3
"""Kinds of errors, at most, of which a case is run each."""
MOST_TOO_DEAR = 20
"""Of these, how many are named."""
PLAIN = ((1, 16385), (2049, 3), (32769, 3))
"""Rows and columns that stand for the ends of the ladder where no dry run tells what is launched.

Not wider: wrappers refuse 65537 columns, and without a dry run nobody knows which.
"""

KERNEL, TURN, FEATURE, SIDE = 50, 10, 2, 1
"""How much it is worth that a kernel runs, that a loop turns more than once, that anything else occurs, how
often a loop turns besides among it, and to stand on a side of a step."""

TELLING_COLUMNS = 3
"""Columns from which on a row's normalized numbers tell anything: of one it is 0, of two they are +-1."""

Look = Callable[[Sequence[ShapePoint]], Sequence[Planned]]
"""Dry runs at points, in their order; it may return fewer and end the search so."""


@dataclass(frozen=True, kw_only=True)
class Reaching:
    """A shape to run: its extents and its price in seconds, compilations not paid for by earlier ones.

    A list of them is in the order of worth for the price. opens: whether a kernel runs there that none before
    it in the list launches. shows: whether a loop turns more than once there, a statement of the wrapper
    runs, or a number lies that kernels compare with, as in none before it.
    variation: how it differs from a case with all given, contiguous.
    """

    rows: int
    columns: int
    variant: int = 0
    seconds: float = 0.0
    opens: bool = False
    shows: bool = False
    variation: Variation | None = None

    def __str__(self) -> str:
        """Print the extents."""
        return f"({self.rows} x {self.columns})" + (f" {self.variation}" if self.variation else "")


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


def seen_around(  # noqa: PLR0917 (what is looked at, and around what)
    look: Look,
    allowed: Callable[[ShapePoint], bool],
    variants: int,
    literals: Callable[[], Iterable[int]],
    like: Sequence[Reaching] = (),
    compared: Sequence[int] = (),
    at: Callable[[int, int], Iterator[ShapePoint]] = rows_and_columns,
) -> dict[ShapePoint, Planned]:
    """Look at a ladder of extents, and wherever launches change; return what was seen.

    allowed: the points that may be asked for. literals: integers of the sources, known after a first look.
    like: shapes that reach all of the same subject in another dtype; then a short ladder does, and points
    around these: thresholds in bytes lie at half or twice as many columns. compared: integers that kernels
    compare with: what they decide no launch tells, so that both of their sides are wanted. at: shapes of
    which two integers of the sources are extents.
    """
    known: dict[ShapePoint, Planned] = {}

    def see(points: Iterable[ShapePoint]) -> None:
        new = [p for p in dict.fromkeys(points) if p not in known and _possible(p) and allowed(p)]
        known.update(zip(new, look(new) if new else (), strict=False))
        known.update(constants.kept(known, new))

    constants = Constants()
    see([*short_ladder(variants), *_in_other_bytes(like)] if like else ladder(variants))
    if not like:
        integers = [*literals()]
        see(near_literals(integers))
        see(pairs_of_literals(integers, at))
    while len(known) < MOST_POINTS:
        before = len(known)
        see([step.middle for step in _to_be_narrowed(known)][: MOST_POINTS - before])
        if len(known) == before:
            break
    see(_crossings(known))
    further = [p for p in _towards_the_limit(known) if p not in known and allowed(p)]
    known.update(zip(further, look(further) if further else (), strict=False))
    steps = _close_steps(known)
    see([p for step, axis in steps if (p := beyond_even_step(step.high, axis)) is not None])
    by_rows = want_many_rows(step.low[0] for step, axis in steps if axis == 0)
    sides = sides_of_numbers(compared)
    see([*sides, *([MANY_ROWS] if by_rows else [])])
    besides = [*sides.items(), *(of_many_rows(known).items() if by_rows else ())]
    besides += [(p, f) for p, each in beyond_bounded_grids(known, see, TELLING_COLUMNS).items() for f in each]
    for point, feature in besides:
        if point in known:
            known[point] = with_feature(known[point], feature)
    return known


def ladder(variants: int) -> Iterator[ShapePoint]:
    """Yield the points that are looked at first.

    Powers of four by powers of two; along a few lines all powers of two and their neighbours, and in the
    other variants a few.
    """
    rows = [1 << k for k in range(MOST_ROWS.bit_length())]
    columns = [1 << k for k in range(MOST_COLUMNS.bit_length())]
    yield from ((r, c, 0) for r in rows[::2] for c in columns)
    yield from ((r, c, 0) for c in (1, 3) for r in _with_neighbours(rows))
    yield from ((r, c, 0) for r in (1, 3) for c in _with_neighbours(columns))
    yield from ((3, c, 0) for c in sevenfold(columns[4:-2]))
    for variant in range(1, variants):
        yield from ((r, c, variant) for r in (1, 48) for c in columns)
        yield from ((r, c, variant) for c in (3, 1024) for r in rows)


def short_ladder(variants: int) -> Iterator[ShapePoint]:
    """Yield powers of two along a line of each axis, and those of sixteen in the other variants."""
    rows = [1 << k for k in range(MOST_ROWS.bit_length())]
    columns = [1 << k for k in range(MOST_COLUMNS.bit_length())]
    yield from ((3, c, 0) for c in columns)
    yield from ((r, 3, 0) for r in rows)
    for variant in range(1, variants):
        yield from ((3, c, variant) for c in columns[::4])
        yield from ((r, 3, variant) for r in rows[::4])


def _in_other_bytes(like: Iterable[Reaching]) -> Iterator[ShapePoint]:
    """Yield the extents of shapes, and those of as many bytes in formats of half and twice the size."""
    for shape in like:
        for columns in (shape.columns, shape.columns // 2, shape.columns // 2 + 1):
            yield shape.rows, columns, shape.variant
        for columns in (2 * shape.columns - 1, 2 * shape.columns):
            yield shape.rows, columns, shape.variant


def near_literals(literals: Iterable[int]) -> Iterator[ShapePoint]:
    """Yield extents at integers of the sources, beside them, and at small multiples."""
    chosen = sorted({n for n in literals if _off_the_ladder(n)})[:MOST_LITERALS]
    near = sorted({k * n + d for n in chosen for k in MULTIPLES for d in (-1, 0, 1)})
    yield from ((3, n, 0) for n in near)
    yield from ((n, 3, 0) for n in near)


def pairs_of_literals(
    literals: Iterable[int], at: Callable[[int, int], Iterator[ShapePoint]] = rows_and_columns
) -> Iterator[ShapePoint]:
    """Yield small shapes of which two integers of the sources are extents: both may have to be met."""
    chosen = sorted({n for n in literals if n > 1})[:MOST_PAIRED]
    points = (point for a in chosen for b in chosen for point in at(a, b))
    yield from (point for point in points if price(*point[:2]) <= CASE_SECONDS)


def _off_the_ladder(number: int) -> bool:
    powers = (number - 1, number, number + 1)
    return 3 < number <= MOST_COLUMNS and all(n & (n - 1) for n in powers)


def _with_neighbours(powers: Sequence[int]) -> list[int]:
    return sorted({n + d for n in powers for d in (-1, 0, 1) if n + d > 0})


def _possible(point: ShapePoint) -> bool:
    rows, columns, _ = point
    return 0 < rows <= MOST_ROWS + 1 and 0 < columns <= MOST_COLUMNS + 1 and rows * columns <= MOST_ELEMENTS


# Steps


def _to_be_narrowed(known: Mapping[ShapePoint, Planned]) -> list[Neighbours]:
    """Return a wide step, the cheapest, for each feature that comes or goes where no close one shows it."""
    wide: dict[object, Neighbours] = {}
    close: set[object] = set()
    for axis in (0, 1):
        for step in _neighbours(known, axis):
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


def _neighbours(known: Iterable[ShapePoint], axis: int) -> Iterator[Neighbours]:
    """Yield all neighbours along an axis: 0 for rows, 1 for columns."""
    lines: dict[tuple[int, int], list[ShapePoint]] = {}
    for point in known:
        lines.setdefault((point[1 - axis], point[2]), []).append(point)
    for line in lines.values():
        for low, high in pairwise(sorted(line, key=lambda p: p[axis])):
            yield Neighbours(low=low, high=high)


def _close_steps(known: Mapping[ShapePoint, Planned]) -> list[tuple[Neighbours, int]]:
    """Return the steps that are known to the row or column, each with its axis."""
    return [
        (step, axis)
        for axis in (0, 1)
        for step in _neighbours(known, axis)
        if step.gap == 1 and known[step.low].features != known[step.high].features
    ]


def _size(step: Neighbours) -> tuple[int, int, ShapePoint]:
    """Order steps by what it costs to run the larger of their points; narrow ones first."""
    rows, columns, _ = step.high
    return rows * columns, step.gap, step.low


def _crossings(known: Mapping[ShapePoint, Planned]) -> list[ShapePoint]:
    """Return where the steps along one axis cross those along the other: the least extents beyond both."""
    steps = _close_steps(known)
    rows, columns = (
        sorted({end[axis] for step, other in steps if other == axis for end in (step.low, step.high)})
        for axis in (0, 1)
    )
    crossing = [(r, c, 0) for r in rows for c in columns if price(r, c) <= CASE_SECONDS]
    return sorted(crossing, key=lambda point: (point[0] * point[1], point))[:MOST_CROSSINGS]


def _towards_the_limit(known: Mapping[ShapePoint, Planned]) -> Iterator[ShapePoint]:
    """Yield a point for each axis along which a grid grows in y or z, where it goes beyond what there can be.

    None where one is known that does, and none of more elements than can be run: the launch is to be refused
    by the machine itself.
    """
    if _beyond_the_limit(known):
        return
    for axis in (0, 1):
        further = []
        for step in _neighbours(known, axis):
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


# Choosing


def price(rows: int, columns: int) -> float:
    """Return the estimated seconds of one case without compilation: the machine, its judge, its blocks.

    Measured on one core of a server: 2.5 s a million elements, of which the oracle takes 2, 20 us a row.
    """
    return 0.05 + 2.5e-6 * rows * columns + 2e-5 * rows


def compilation(width: int) -> float:
    """Return the estimated seconds of compiling one kernel whose widest tile has so many elements.

    Measured likewise: 0.3 s for a narrow tile, 1.2 s for one of 16384.
    """
    return 0.3 + width / 16000


def cover(known: Mapping[ShapePoint, Planned]) -> list[Reaching]:
    """Return shapes that reach all that was seen and can be afforded, the most worth for its price first."""
    demands = _demands(known)
    compiled: set[tuple[str, int]] = set()
    met: set[str] = set()
    chosen: list[Reaching] = []
    while True:
        best = max(_offers(known, demands, compiled, met), default=None)
        if best is None:
            return chosen
        _, _, cost, negated = best
        rows, columns, variant = point = (-negated[0], -negated[1], -negated[2])
        new = demands.pop(point) - met
        kernels, shown = _first_seen(new, _turned(met))
        chosen.append(
            Reaching(
                rows=rows,
                columns=columns,
                variant=variant,
                seconds=round(-cost, 2),
                opens=bool(kernels),
                shows=bool(shown),
            )
        )
        met |= new
        compiled |= known[point].compiled


def too_dear(known: Mapping[ShapePoint, Planned], chosen: Iterable[Reaching]) -> list[Reaching]:
    """Return shapes beyond the limit that reach what none of the chosen does, sides of steps left out."""
    demands = {
        p: frozenset(d for d in wanted if not d.endswith(_SIDES)) for p, wanted in _demands(known).items()
    }
    points = [(shape.rows, shape.columns, shape.variant) for shape in chosen]
    met = set[str]().union(*(demands[point] for point in points))
    compiled = {one for point in points for one in known[point].compiled}
    found: list[Reaching] = []
    while len(found) < MOST_TOO_DEAR:
        best = max(_offers(known, demands, compiled, met, most=math.inf), default=None)
        if best is None:
            break
        _, _, cost, (rows, columns, variant) = best
        found.append(Reaching(rows=-rows, columns=-columns, variant=-variant, seconds=round(-cost, 2)))
        met |= demands[-rows, -columns, -variant]
    return found


def _offers(
    known: Mapping[ShapePoint, Planned],
    demands: Mapping[ShapePoint, frozenset[str]],
    compiled: set[tuple[str, int]],
    met: set[str],
    *,
    most: float = CASE_SECONDS,
) -> Iterator[tuple[bool, float, float, tuple[int, int, int]]]:
    """Yield (whether it comes first, worth for the price, -price, -point) of each point that has news.

    First come those where a kernel runs, a loop turns more than once, a statement of the wrapper runs, or a
    number lies that kernels compare with, as none of the others has shown.
    """
    turned = _turned(met)
    for point, wanted in demands.items():
        new = wanted - met
        if new:
            cost = price(*point[:2]) + sum(compilation(w) for _, w in known[point].compiled - compiled)
            if cost <= most:
                kernels, shown = _first_seen(new, turned)
                worth = sum(map(_worth, new)) + (TURN - FEATURE) * sum(
                    not s.startswith(_ALONE) for s in shown
                )
                yield bool(kernels or shown), worth / cost, -cost, (-point[0], -point[1], -point[2])


def _first_seen(new: Iterable[str], turned: AbstractSet[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the kernels among what is new, and with loops beyond `turned` that turn what no launch tells."""
    found = list(new)
    loops = {_loop_of(demand) for demand in found if _turns(demand)} - turned
    alone = {d for d in found if d.startswith(_ALONE) and not d.endswith(_SIDES)}
    return frozenset(demand for demand in found if _worth(demand) == KERNEL), frozenset(loops | alone)


def _turned(met: Iterable[str]) -> frozenset[str]:
    """Return the loops that turned more than once in what was met."""
    return frozenset(_loop_of(demand) for demand in met if _turns(demand))


def _worth(demand: str) -> int:
    """Return how much a demand is worth; of a loop that turns, without that it is the first time."""
    if demand.endswith(_SIDES):
        return SIDE
    return FEATURE if ": " in demand else KERNEL


def _turns(demand: str) -> bool:
    """Return whether a loop turns more than once."""
    return ": loops over " in demand and not demand.endswith((" 0", " 1", *_SIDES))


def _loop_of(demand: str) -> str:
    """Return which loop it is, without how often it turns."""
    return demand.rpartition(" ")[0]


_ALONE = (WRAPPER, NUMBER, BOUNDED, MANY)
"""How what no launch tells begins: it is wanted wherever it shows first."""
_SIDES = (", before it changes", ", after it changes", ", one beyond the change")


def _demands(known: Mapping[ShapePoint, Planned]) -> dict[ShapePoint, frozenset[str]]:
    """Return what each point shows: its features, and sides of steps. What is refused shows nothing.

    Very short rows show only what longer ones do not: there, results are zeros and ones whatever is computed.
    """
    shown = {p: set(seen.features) for p, seen in known.items() if seen.features and not seen.refused}
    for axis, name in enumerate(("rows", "columns")):
        for step in _neighbours(shown, axis):
            if step.gap > 1:
                continue
            ends, beyond = [step.low, step.high], beyond_even_step(step.high, axis)
            if beyond in shown and known[beyond].features == known[step.high].features:
                ends.append(beyond)
            for feature in _step_of(known[step.low].features ^ known[step.high].features):
                for point, side in zip(ends, _SIDES, strict=False):
                    shown[point].add(f"{feature} along {name}{side}")
    plain = set[str]().union(*(d for p, d in shown.items() if p[1] >= TELLING_COLUMNS and _affordable(p)))
    return {p: frozenset(d if p[1] >= TELLING_COLUMNS else d - plain) for p, d in shown.items()}


def _step_of(changed: AbstractSet[str]) -> Iterable[str]:
    """Return of what changes at a step that of which both sides are wanted.

    That a loop turns again, arguments tell; what statements run, launches tell, unless these stay the same.
    """
    launched = {one for one in changed if not one.endswith((AGAIN, SEVENFOLD)) and not one.startswith(_ALONE)}
    return launched or {one for one in changed if one.startswith(WRAPPER)}


def _affordable(point: ShapePoint) -> bool:
    return price(*point[:2]) <= CASE_SECONDS / 2
