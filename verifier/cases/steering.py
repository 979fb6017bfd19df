"""Which shapes a search begins with: those that a subject's author names, then those that reach launches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from strategies.formats import float_format
from strategies.layouts import Layout
from strategies.values import Values
from verifier.cases.plan import Plan
from verifier.cases.reaching_shapes import CASE_SECONDS, Reaching, price
from verifier.cases.recipe import Recipe
from verifier.ops import Op, op
from verifier.records.subject import Subject

MILD = ("ordinary", "alternating_signs")
"""Hazards of these shapes, tried in turn."""
ROWS_APART = 3
"""Rows that lie apart, at least: of two the stride needs 64 bits, and then the product has as many."""
PLANTED = (16, 64)
"""Rows and columns of the case with numbers of the sources: a shape that the fixed list has anyway."""
SHOWN = 3
"""Shapes that a note names of those that are left out; of the others it says how many there are."""


@dataclass(frozen=True, kw_only=True)
class Steering:
    """What a search begins with: shapes in rising price, and those that there is no time for."""

    shapes: tuple[Reaching, ...] = ()
    left_out: tuple[Reaching, ...] = ()

    def note(self, budget: str) -> str:
        """Return what is left out, with its price, or nothing. budget: in words."""
        if not self.left_out:
            return ""
        dearest = sorted(self.left_out, key=lambda shape: -shape.seconds)
        named = [f"{shape}: about {math.ceil(shape.seconds)} s" for shape in dearest[:SHOWN]]
        if rest := dearest[SHOWN:]:
            seconds = math.ceil(sum(shape.seconds for shape in rest))
            named.append(f"{len(rest)} more: about {seconds} s together")
        return f"{', '.join(named)}, left out by {budget}"


def steering(
    named: Iterable[tuple[int, int]], reaching: Sequence[Reaching], *, cases: int, seconds: float
) -> Steering:
    """Choose what a budget has room for: all that the author names, and of the others what they are worth.

    reaching: the most worth for its price first. cases, seconds: of the others, at most.
    """
    first = [Reaching(rows=rows, columns=columns) for rows, columns in dict.fromkeys(named)]
    chosen: list[Reaching] = []
    left_out: list[Reaching] = []
    for shape in reaching:
        fits = (
            shape.seconds <= CASE_SECONDS
            and len(chosen) < cases
            and sum(s.seconds for s in chosen) + shape.seconds <= seconds
        )
        (chosen if fits else left_out).append(shape)
    rising = sorted(chosen, key=lambda shape: (price(shape.rows, shape.columns), shape.rows, shape.variant))
    return Steering(shapes=(*first, *rising), left_out=tuple(left_out))


def at_numbers(subject: Subject, plan: Plan, dtype: str, numbers: Sequence[float]) -> Iterator[Recipe]:
    """Yield recipes of one small case each whose rows hold the numbers of both signs and their neighbours.

    numbers: not negative. Of those the domain takes; the first recipe that is a case inside it is to be run.
    """
    domain, largest = subject.domain, float_format(dtype).maximum
    most = largest if domain is None or domain.max_abs is None else domain.max_abs * (1 - 2.0**-7)
    inside = [number for number in numbers if number <= most]
    for columns in dict.fromkeys((PLANTED[1], plan.min_columns, plan.max_columns)):
        rows = min(max(2 * len(inside), PLANTED[0], plan.min_rows), plan.max_rows)
        if inside and columns and plan.fits(rows, columns):
            planted = tuple(sign * number for number in inside for sign in (1, -1))
            yield _ordinary(subject, plan, Reaching(rows=rows, columns=columns), Values(planted=planted))


def _ordinary(subject: Subject, plan: Plan, shape: Reaching, values: Values) -> Recipe:
    """Return a recipe with everything given that may be; values: of the input, and the seed of all."""
    the_op = op(subject.op)
    given, others = plan.parameters_of(the_op, subject), Values(seed=values.seed)
    return Recipe(
        rows=shape.rows,
        columns=shape.columns,
        variant=shape.variant,
        input=values,
        weight=others if True in given["weight"] else None,
        bias=others if True in given["bias"] else None,
        further=tuple((name, others if True in given[name] else None) for name in the_op.varied),
        grad_output=others,
        eps=plan.eps[0],
    )


def steered(subject: Subject, plan: Plan, shapes: Iterable[Reaching]) -> Iterator[tuple[Recipe, ...]]:
    """Yield recipes for each shape, of which the first inside the domain is to be run; weight and bias given.

    Numbers are ordinary, so that the bound judges; of many short rows, one may have a spread so small that
    nothing is promised of it, and signs that alternate give it one.
    """
    for number, shape in enumerate(shapes):
        values = Values(seed=number)
        ordinary = _ordinary(subject, plan, shape, values)
        if plan.apart:
            rows = max(shape.rows, ROWS_APART)
            layouts = _apart(op(subject.op), rows, shape, plan.apart)
            ordinary = replace(ordinary, rows=rows, layouts=layouts)
        yield tuple(replace(ordinary, input=replace(values, hazard=hazard)) for hazard in MILD)


def _apart(the_op: Op, rows: int, shape: Reaching, apart: int) -> tuple[tuple[str, Layout], ...]:
    """Return layouts in which the last run of the innermost axis begins `apart` elements from the first."""
    shapes = the_op.shapes(rows, shape.columns, shape.variant)
    runs = rows if shapes is None else math.prod(shapes.tensors["input"][:-1])
    layout = Layout(row_padding=-(-apart // max(runs - 1, 1)))
    return ("input", layout), ("grad_output", layout)
