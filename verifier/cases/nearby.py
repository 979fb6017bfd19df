"""Recipes near others: a few things of one are changed, so that what it reached is mostly reached again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from strategies.draws import numbers
from strategies.values import Values
from verifier.cases.drawn import recipes
from verifier.cases.plan import Plan
from verifier.cases.recipe import Recipe
from verifier.ops import Op
from verifier.records.subject import Subject

MOST_CHANGES = 3
"""Changes of one recipe, at most: of many changes little is left of what it reached."""
STEPS = (1, -1, 2, -2, 3, -3, 8, -8)
"""By how much an extent is changed; it is doubled or halved, too."""
LARGEST_STRENGTH = 15
LARGEST_SCALE = 64
"""Powers of two that numbers are multiplied by as they are changed, at most: each change adds some."""
MOST_SEED = 2**16 - 1

_CHANGES = (
    "extents",
    "numbers",
    "gradient",
    "new extents",
    "new input",
    "new parameters",
    "new gradient",
    "new layouts",
    "new rest",
)
"""What may be changed: the first three are moved a little, the others are drawn anew."""


@st.composite
def recipes_nearby(  # noqa: PLR0917 (as those of `recipes`, with the parents)
    draw: st.DrawFn, parents: Sequence[Recipe], op: Op, subject: Subject, dtype: str, plan: Plan
) -> Recipe:
    """Generate recipes that differ from one of the parents in one to three things; shrinks to the first.

    parents: at least one; what is named twice is drawn twice as often.
    """
    recipe = parents[draw(st.integers(0, len(parents) - 1))]
    changes = draw(st.lists(st.sampled_from(_CHANGES), min_size=1, max_size=MOST_CHANGES, unique=True))
    fresh = draw(recipes(op, subject, dtype, plan)) if any(c.startswith("new") for c in changes) else recipe
    for change in changes:
        recipe = _changed(draw, change, recipe, fresh, plan)
    return recipe


def _changed(draw: st.DrawFn, change: str, recipe: Recipe, fresh: Recipe, plan: Plan) -> Recipe:
    match change:
        case "extents":
            return _resized(draw, recipe, plan)
        case "numbers":
            return replace(recipe, input=_moved(draw, recipe.input))
        case "gradient":
            return replace(recipe, grad_output=_moved(draw, recipe.grad_output))
        case "new extents":
            return replace(recipe, rows=fresh.rows, columns=fresh.columns, variant=fresh.variant)
        case "new input":
            return replace(recipe, input=fresh.input, joint=fresh.joint)
        case "new parameters":
            return replace(recipe, weight=fresh.weight, bias=fresh.bias, further=fresh.further)
        case "new gradient":
            return replace(recipe, grad_output=fresh.grad_output)
        case "new layouts":
            return replace(recipe, layouts=fresh.layouts)
        case _:
            return replace(
                recipe,
                eps=fresh.eps,
                parameter_dtype=fresh.parameter_dtype,
                bias_dtype=fresh.bias_dtype,
                residual_dtype=fresh.residual_dtype,
            )


def _resized(draw: st.DrawFn, recipe: Recipe, plan: Plan) -> Recipe:
    """Change one extent by a little, or by a factor of two; as it was where the plan has no room for it."""
    name = draw(st.sampled_from(("columns", "rows")))
    before: int = getattr(recipe, name)
    after = draw(st.sampled_from((*(before + step for step in STEPS), 2 * before, before // 2)))
    resized = replace(recipe, columns=after) if name == "columns" else replace(recipe, rows=after)
    fits = plan.fits(resized.rows, resized.columns)
    if plan.shapes:
        fits = (resized.rows, resized.columns) in plan.shapes
    return resized if fits else recipe


def _moved(draw: st.DrawFn, values: Values) -> Values:
    """Change one thing of how numbers are made, the hazard but for it."""
    what = draw(st.sampled_from(("strength", "scale", "seed", "negative", "odd_rows")))
    if what == "strength":
        after = values.strength + draw(st.sampled_from((1, -1, 2, -2)))
        return replace(values, strength=min(max(after, 0), LARGEST_STRENGTH))
    if what == "scale":
        after = values.scale + draw(st.sampled_from((1, -1, 4, -4)))
        return replace(values, scale=min(max(after, -LARGEST_SCALE), LARGEST_SCALE))
    if what == "seed":
        return replace(values, seed=draw(numbers(MOST_SEED)))
    if what == "negative":
        return replace(values, negative=not values.negative)
    return replace(values, odd_rows=None)
