"""Which shapes a search begins with: those that a subject's author names, then those that reach launches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from strategies.formats import float_format
from strategies.layouts import Layout
from strategies.values import Values
from verifier.cases.plan import Plan
from verifier.cases.priced_shape import CASE_SECONDS, Reaching, price
from verifier.cases.recipe import Recipe
from verifier.cases.unseen_by_launches import MANY_ROWS
from verifier.cases.variations import Variation, variations, varied
from verifier.ops import Op, op
from verifier.records.subject import Subject

ROWS_APART = 3
"""Rows that lie apart, at least: of two the stride needs 64 bits, and then the product has as many."""
LONGEST_APART = 2**16
"""Columns that lie apart, at most: each touches a page of its own, 256 MiB a tensor."""
PLANTED = (16, 64)
"""Rows and columns of the case with numbers of the sources: a shape that the fixed list has anyway."""
LARGE_SHAPES, LARGE_SECONDS = 2, 1.5
"""Shapes where other kernels run that are tried with large numbers, and the price of each, at most."""
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
    named: Iterable[tuple[int, int]],
    reaching: Sequence[Reaching],
    *,
    cases: int,
    seconds: float,
    again: Callable[[Reaching], Sequence[Variation]] = lambda _: (),
    besides: tuple[int, float] = (0, 0.0),
    for_news: float = 0.0,
) -> Steering:
    """Choose what a budget has room for: all that the author names, and of the others what they are worth.

    reaching: the most worth for its price first. cases, seconds: of the others, at most. again: how a shape
    is wanted besides; of those that the author does not name, if there is room when all were chosen.
    besides: cases and seconds that these may take beyond the others'. for_news: seconds besides for
    shapes without room where a kernel or a statement runs, or a loop turns more than once, as at none before.
    """
    asked = [Reaching(rows=rows, columns=columns) for rows, columns in dict.fromkeys(named)]
    first = [*asked, *(v for plain in asked for v in _varied(plain, again(replace(plain, opens=True))))]
    chosen: list[Reaching] = []
    beyond: list[Reaching] = []
    left_out: list[Reaching] = []
    for shape in (*reaching, *(v for plain in reaching for v in _varied(plain, again(plain)))):
        further, longer = besides if shape.variation else (0, 0.0)
        fits = (
            shape.seconds <= CASE_SECONDS
            and len(chosen) < cases + further
            and sum(s.seconds for s in chosen) + shape.seconds <= seconds + longer
        )
        news = (shape.opens or shape.shows) and not shape.variation
        may = news and sum(s.seconds for s in beyond) + shape.seconds <= for_news
        (chosen if fits else beyond if may else left_out).append(shape)
    rising = sorted(
        (*chosen, *beyond),
        key=lambda s: (s.variation is not None, price(s.rows, s.columns), s.rows, s.variant),
    )
    return Steering(shapes=(*first, *rising), left_out=tuple(left_out))


def without_many(shapes: Iterable[Reaching]) -> list[Reaching]:
    """Leave out the shape of very many rows, for checks that try few shapes in many ways each."""
    return [s for s in shapes if (s.rows, s.columns, s.variant) != MANY_ROWS]


def lengths_alone(
    reaching: Iterable[Reaching], rows: int, variant: int, *, steps: bool = False
) -> list[Reaching]:
    """Return shapes of so many rows, one of each length among others that show a kernel or a loop first.

    A shape that is chosen for its many rows stands for its length: whoever asks has more rows in the end.
    variant: the form of all of them. steps: behind them the lengths at which anything else changes, such as
    what a kernel was compiled for.
    """
    first: dict[int, Reaching] = {}
    for shape in sorted(reaching, key=lambda one: not (one.opens or one.shows)):
        if (steps or shape.opens or shape.shows) and shape.seconds <= CASE_SECONDS:
            rest = max(0.0, shape.seconds - price(shape.rows, shape.columns))
            seconds = round(rest + price(rows, shape.columns), 2)
            first.setdefault(shape.columns, replace(shape, rows=rows, variant=variant, seconds=seconds))
    return [*first.values()]


def _varied(shape: Reaching, each: Iterable[Variation]) -> Iterator[Reaching]:
    return (replace(shape, variation=variation) for variation in each)


def wanted_again(subject: Subject, plan: Plan, *, few: bool) -> Callable[[Reaching], Sequence[Variation]]:
    """Return how a shape is to be run besides: where no other case does so.

    few: of them only those where a kernel runs that no cheaper shape launches. A parameter that is absent,
    another dtype, a stride are other code in each kernel that is launched, and what masked lanes hold is not
    multiplied by a weight of 0 where there is none. Its fixed list has them at the shapes of a plan.
    """
    the_op = op(subject.op)
    every = variations(the_op, plan, subject)
    bare = tuple(variation for variation in every if variation is Variation.BARE)

    listed = plan.few_shapes(long=False).shapes if few else None

    def of(shape: Reaching) -> Sequence[Variation]:
        rows, columns = shape.rows, shape.columns
        if plan.fits(rows, columns) if listed is None else any(rows <= r and columns <= c for r, c in listed):
            return ()
        return every if shape.opens else () if few else bare

    return of


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


def near_the_largest(
    subject: Subject, plan: Plan, dtype: str, shapes: Iterable[Reaching]
) -> Iterator[tuple[Recipe, ...]]:
    """Yield recipes of ordinary rows whose numbers go as far as is promised, and whose squares can be summed.

    One small case has rows of rising magnitudes; a few of the shapes where other kernels run have the largest
    alone. The first recipe of each that is a case inside the domain is to be run.
    """
    top = _largest_power(subject, dtype)
    if top < len(_MAGNITUDES):
        return
    rows, columns = min(PLANTED[0], plan.max_rows), min(PLANTED[1], plan.max_columns)
    if rows and columns and plan.fits(rows, columns):
        step, rest = divmod(top, len(_MAGNITUDES) - 1)
        steps = Values(scale=rest, row_scale=step)
        yield (_ordinary(subject, plan, Reaching(rows=rows, columns=columns), steps),)
    large = [s for s in shapes if s.opens and not s.variation and s.seconds <= LARGE_SECONDS]
    for number, shape in enumerate(large[:LARGE_SHAPES]):
        each = (Values(seed=number, scale=power) for power in (top, top - 2))
        yield tuple(_ordinary(subject, plan, shape, values) for values in each)


_MAGNITUDES = range(8)
"""Multiples of `Values.row_scale` by which rows are scaled in turn."""


def _largest_power(subject: Subject, dtype: str) -> int:
    """Return the power of two by which ordinary numbers, below 8, may be multiplied."""
    domain = subject.domain
    held, summed = (math.frexp(float_format(n).maximum)[1] for n in (dtype, _summed_in(dtype)))
    top = min(held - 4, summed // 2 - 14)
    return top if domain is None or domain.max_abs is None else min(top, math.frexp(domain.max_abs)[1] - 4)


def _summed_in(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def _ordinary(subject: Subject, plan: Plan, shape: Reaching, values: Values) -> Recipe:
    """Return a recipe with everything given that may be. values: of the input, and the seed of all."""
    the_op = op(subject.op)
    others = Values(seed=values.seed)
    given = {
        name: others if any(levels) else None for name, levels in plan.parameters_of(the_op, subject).items()
    }
    return Recipe(
        rows=shape.rows,
        columns=shape.columns,
        variant=shape.variant,
        input=values,
        weight=given["weight"],
        bias=given["bias"],
        further=tuple((name, given[name]) for name in the_op.varied),
        grad_output=others,
        eps=plan.eps[0],
    )


def steered(subject: Subject, plan: Plan, shapes: Iterable[Reaching]) -> Iterator[tuple[Recipe, ...]]:
    """Yield recipes for each shape, of which the first inside the domain that is not refused is to be run.

    Numbers are ordinary where a plan asks for no others, so that the bound judges; of many short rows, one
    may have a spread so small that nothing is promised of it, and signs that alternate give it one. Where a
    plan asks for elements that lie apart, rows do, and then columns.
    """
    for number, shape in enumerate(shapes):
        values = Values(seed=number)
        ordinary = _ordinary(subject, plan, shape, values)
        if shape.variation is not None:
            yield tuple(varied(op(subject.op), plan, subject, ordinary, shape.variation))
            continue
        for placed in _apart(op(subject.op), ordinary, plan.apart) if plan.apart else (ordinary,):
            yield tuple(
                replace(placed, input=replace(values, hazard=hazard)) for hazard in plan.reaching_hazards
            )


def _apart(the_op: Op, recipe: Recipe, apart: int) -> Iterator[Recipe]:
    """Yield a recipe with rows apart, and one with columns apart unless they are too many."""
    rows = max(recipe.rows, ROWS_APART)
    shapes = the_op.shapes(rows, recipe.columns, recipe.variant)
    shape = (rows, recipe.columns) if shapes is None else shapes.tensors["input"]
    layouts = [runs_apart(shape, apart)]
    if len(shape) > 1 and ROWS_APART <= shape[-1] <= LONGEST_APART:
        layouts.append(columns_apart(shape, apart))
    for layout in layouts:
        yield replace(recipe, rows=rows, layouts=(("input", layout), ("grad_output", layout)))


def runs_apart(shape: Sequence[int], apart: int) -> Layout:
    """Return the layout in which the innermost axis's last run begins `apart` elements from the first."""
    return Layout(row_padding=_padding(math.prod(shape[:-1]), apart))


def columns_apart(shape: Sequence[int], apart: int) -> Layout:
    """Return the layout in which rows lie side by side, and the last column begins `apart` from the first.

    In a batch norm of (samples, channels, ...) these columns are the channels.
    """
    return Layout(order="transposed", row_padding=_padding(math.prod(shape) // max(shape[-2], 1), apart))


def _padding(runs: int, apart: int) -> int:
    return -(-apart // max(runs - 1, 1))
