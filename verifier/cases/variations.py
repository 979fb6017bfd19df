"""How a shape where another kernel runs is tried again: otherwise than with all given, contiguous and alike.

The fixed list varies parameters, dtypes and eps at small shapes. What is wrong only in a kernel that long or
many rows launch needs the same variety there, in few cases, since each is a compilation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum

from strategies.layouts import Layout
from verifier.cases.besides_pairs import SMALL_SCALE, VECTOR
from verifier.cases.plan import Plan
from verifier.cases.recipe import Recipe
from verifier.ops import Op
from verifier.records.subject import Subject

ROWS = 2
"""Rows of a case whose rows lie apart, at least."""
UNLIKE = 4
"""Layouts of tensors that lie apart, of which each has the next."""


class Variation(StrEnum):
    """What of a case is unusual: which parameters it has, and how.

    BARE: none that may be left out, eps of 0 and numbers whose variance it would drown in any other.
    FIRST: every second of those that may be left out, of another dtype, apart; rows apart; a large eps.
    SECOND: the others of them, of another dtype, apart; columns apart.
    """

    BARE = "without parameters"
    FIRST = "with some parameters, rows apart, a large eps"
    SECOND = "with the other parameters, columns apart"


def variations(op: Op, plan: Plan, subject: Subject) -> tuple[Variation, ...]:
    """Return the variations that differ from one another for a subject."""
    optional = len(_optional(op, plan, subject))
    return (
        *((Variation.BARE,) if optional or 0.0 in plan.eps_of(op, subject) else ()),
        Variation.FIRST,
        *((Variation.SECOND,) if optional > 1 else ()),
    )


def varied(op: Op, plan: Plan, subject: Subject, recipe: Recipe, variation: Variation) -> Iterator[Recipe]:
    """Yield recipes, the most unusual first: the next is for a subject that does not take the one before.

    recipe: with everything given.
    """
    eps = plan.eps_of(op, subject)
    optional = _optional(op, plan, subject)
    if variation is Variation.BARE:
        alone = _without(recipe, optional)
        if 0.0 in eps:
            yield replace(alone, eps=0.0, input=replace(alone.input, scale=SMALL_SCALE))
        yield alone
        return
    first = variation is Variation.FIRST
    alone = _without(recipe, optional[first::2])
    alone = replace(alone, eps=max((e for e in eps if e is not None), default=None)) if first else alone
    dtypes = plan.parameter_dtypes_of(op, subject)
    other = replace(alone, parameter_dtype=dtypes[-1]) if len(dtypes) > 1 else alone
    sums = plan.residual_dtypes_of(op)
    other = replace(other, residual_dtype=sums[-1]) if sums else other
    layouts = _layouts(op, plan, subject, recipe, rows=first)
    apart = replace(other, rows=max(other.rows, ROWS) if first else other.rows, layouts=layouts)
    yield from dict.fromkeys((apart, other, alone))


def _optional(op: Op, plan: Plan, subject: Subject) -> list[str]:
    levels = plan.parameters_of(op, subject)
    return [name for name, given in levels.items() if set(given) == {True, False}]


def _without(recipe: Recipe, names: list[str]) -> Recipe:
    kept = {name: None if name in names else recipe.values_of(name) for name in ("weight", "bias")}
    further = tuple((name, None if name in names else values) for name, values in recipe.further)
    return replace(recipe, weight=kept["weight"], bias=kept["bias"], further=further)


def _layouts(
    op: Op, plan: Plan, subject: Subject, recipe: Recipe, *, rows: bool
) -> tuple[tuple[str, Layout], ...]:
    """Return a layout for each tensor, unlike those beside it, of those that the subject takes."""
    shapes = op.shapes(max(recipe.rows, ROWS), recipe.columns, recipe.variant)
    promised = None if subject.domain is None else subject.domain.layouts
    made = []
    for number, name in enumerate(plan.laid_out(op, subject)):
        shape = None if shapes is None else shapes.tensors.get(name)
        along = not rows or (shape is not None and len(shape) == 1)
        apart = 1 + number % UNLIKE
        layout = Layout(column_step=1 + apart) if along else Layout(row_padding=VECTOR * apart)
        if promised is None or {*layout.kinds} <= {*promised}:
            made.append((name, layout))
    return tuple(made)
