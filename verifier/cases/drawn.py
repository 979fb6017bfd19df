"""Recipes that Hypothesis draws, and shrinks towards few rows and columns of ordinary numbers."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from strategies.layouts import Layout, layouts
from strategies.shapes import row_column_shapes
from strategies.values import Values, values
from verifier.cases.hazards import joint_hazards
from verifier.cases.plan import GRADIENT_HAZARDS, Plan
from verifier.cases.recipe import Recipe, with_derived
from verifier.ops import Op
from verifier.records.subject import Subject

_PARAMETER_HAZARDS = ("ordinary", "powers_of_two", "small_integers", "lognormal", "alternating_signs")


@st.composite
def recipes(draw: st.DrawFn, op: Op, subject: Subject, dtype: str, plan: Plan) -> Recipe:
    """Generate recipes for a subject; shrinks towards few rows and columns of ordinary numbers."""
    rows, columns = draw(
        st.sampled_from(plan.shapes)
        if plan.shapes
        else row_column_shapes(
            max_elements=plan.max_elements,
            min_rows=plan.min_rows,
            max_rows=plan.max_rows,
            min_columns=plan.min_columns,
            max_columns=plan.max_columns,
        )
    )
    input_values = draw(values(hazards=plan.hazards, dtype=dtype))
    parameters: dict[str, Values | None] = {}
    for name, given in plan.parameters_of(op, subject).items():
        numbers = values(hazards=_PARAMETER_HAZARDS, dtype=dtype, mixed_rows=False)
        parameters[name] = draw(st.none() | numbers if len(given) > 1 else numbers) if True in given else None
    gradient = Values()
    if plan.gradients:
        gradient = draw(values(hazards=GRADIENT_HAZARDS, dtype=dtype))
    joint = draw(st.sampled_from((None, None, None, *joint_hazards()))) if plan.joint else None
    variants = plan.variants_of(op)
    variant = variants[draw(st.integers(0, len(variants) - 1))]
    recipe = Recipe(
        rows=rows,
        columns=columns,
        variant=variant,
        input=input_values,
        weight=parameters["weight"],
        bias=parameters["bias"],
        further=tuple((name, parameters[name]) for name in op.varied),
        grad_output=gradient,
        joint=joint,
        eps=draw(st.sampled_from([eps for eps in plan.eps_of(op, subject) if eps])),
    )
    dtypes = plan.parameter_dtypes_of(op, subject)
    if len(dtypes) > 1:
        recipe = replace(recipe, parameter_dtype=draw(st.sampled_from(dtypes)))
    sums = plan.residual_dtypes_of(op)
    if sums:
        recipe = replace(recipe, residual_dtype=draw(st.sampled_from(sums)))
    if plan.carriers:
        there = ("input", *(n for n in plan.carried_by(op, subject)[1:] if recipe.values_of(n) is not None))
        recipe = recipe.carried_by(draw(st.sampled_from(there)))
    if plan.placements:
        return replace(recipe, layouts=draw(st.sampled_from(plan.placements)))
    return replace(recipe, layouts=_draw_layouts(draw, op, subject, recipe, plan))


def _draw_layouts(
    draw: st.DrawFn, op: Op, subject: Subject, recipe: Recipe, plan: Plan
) -> tuple[tuple[str, Layout], ...]:
    drawn = op.shapes(recipe.rows, recipe.columns, recipe.variant)
    if drawn is None or plan.layouts == ("contiguous",):
        return ()
    shapes = with_derived(op, subject, drawn)
    names = [name for name in plan.laid_out(op, subject) if name in shapes.tensors]
    # What is changed in place, or follows from others, cannot be expanded: its elements would share memory.
    alone = tuple(kind for kind in plan.layouts if kind != "expanded")
    allowed = {n: alone if n in {*subject.mutates, *op.derived} else plan.layouts for n in names}
    chosen = [(n, draw(layouts(allow=allowed[n], shape=shapes.tensors[n]))) for n in names]
    return tuple((n, layout) for n, layout in chosen if layout != Layout())
