"""Of all that dry runs saw, the few shapes in which everything occurs that tells launches apart.

They lie on both sides of each step, and those that are worth most for their price come first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

from verifier.cases.bounded_grids import BOUNDED
from verifier.cases.launch_steps import neighbours
from verifier.cases.priced_shape import CASE_SECONDS, Reaching, compilation, price
from verifier.cases.unseen_by_launches import MANY, NUMBER, beyond_even_step
from verifier.records.planned_launches import AGAIN, SEVENFOLD, WRAPPER, Planned, ShapePoint

MOST_TOO_DEAR = 20
"""Shapes too dear to be run that are named, at most."""
KERNEL, TURN, FEATURE, SIDE = 50, 10, 2, 1
"""How much it is worth that a kernel runs, that a loop turns more than once, that anything else occurs, how
often a loop turns besides among it, and to stand on a side of a step."""
TELLING_COLUMNS = 3
"""Columns from which on a row's normalized numbers tell anything: of one it is 0, of two they are +-1."""


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
                launches=launched_at(known[point]),
                turns=turned_at(known[point]),
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
        point = (-rows, -columns, -variant)
        found.append(
            Reaching(
                rows=point[0],
                columns=point[1],
                variant=point[2],
                seconds=round(-cost, 2),
                launches=launched_at(known[point]),
                turns=turned_at(known[point]),
            )
        )
        met |= demands[point]
    return found


def launched_at(seen: Planned) -> frozenset[str]:
    """Return the kernels that a call launches."""
    return frozenset(one for one in seen.features if ": " not in one)


def turned_at(seen: Planned) -> frozenset[tuple[str, int]]:
    """Return file and line of each loop that may turn more than once in a call."""
    return frozenset((file, line) for file, line, again in seen.loops if again)


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
        for step in neighbours(shown, axis):
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
