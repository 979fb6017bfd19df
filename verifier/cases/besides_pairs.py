"""Recipes that stand beside the pairs of the fixed list, each for what pairs show late or never."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from strategies.hazards import hazard_names
from strategies.layouts import Layout
from strategies.values import Values
from verifier.cases.extents_and_layouts import CUT, LEADING, PADDED, REVERSED, cover_shapes
from verifier.cases.pairwise import Choice
from verifier.cases.plan import Plan
from verifier.cases.possible_choices import FEW_COLUMNS, MILDEST, Possible, shows
from verifier.cases.recipe import Recipe
from verifier.ops import Op
from verifier.ops import op as named_op
from verifier.records.subject import Domain, Subject

SMALL_SCALE = -10
"""Power of two of inputs whose eps is zero: their variance, near 1e-6, makes any other eps obvious."""
TINY_EPS, TINY_SCALE = 1e-20, -20
"""The smallest eps, and a power of two of inputs beside it: their variance, near 1e-12, is far above it and
near what kernels raise it to; half precision still holds them."""
FAR, USUAL_MEAN, STRONGEST = "cancellation", 100.0, 7
"""The hazard of rows far from zero, their mean where no limit of it is promised, and the largest strength."""
FAR_BELOW = 3
"""The power of ten of a mean, in standard deviations of about 1: exp(-1000) is 0 in every format."""
VECTOR = 8
"""Elements of the widest vectors that kernels load: 16 bytes of a format of two."""


def besides(subject: Subject, plan: Plan, possible: Possible) -> list[Recipe]:
    """Return what the fixed list has besides pairs of levels, early."""
    found = (
        _small_beside_tiny_eps(subject, plan, possible),
        _far_from_zero(subject, plan, possible),
        _far_below_zero(plan, possible),
        *_cut_from_matrices(subject, plan, possible),
        *_axes_exchanged(subject, plan, possible),
    )
    return [recipe for recipe in found if recipe is not None]


def _small_beside_tiny_eps(subject: Subject, plan: Plan, possible: Possible) -> Recipe | None:
    """Return small ordinary numbers beside the tiny eps, where each eps must be tried.

    It comes besides the pairs: in these, inputs beside a tiny eps are large, too, and overflow.
    """
    if "eps" not in plan.must or TINY_EPS not in plan.eps_of(possible.op, subject):
        return None
    shape = shape_of_spread(plan, possible)
    if shape is None:
        return None
    recipe = plain_recipe(shape, possible, eps=TINY_EPS)
    return replace(recipe, input=replace(recipe.input, scale=TINY_SCALE))


def _far_from_zero(subject: Subject, plan: Plan, possible: Possible) -> Recipe | None:
    """Return rows about a mean of as many standard deviations as are promised, where each eps must be tried.

    It comes besides the pairs: in these, a large mean meets one column, or comes late.
    """
    strength, shape = largest_mean(subject, plan), shape_of_spread(plan, possible)
    if strength is None or shape is None:
        return None
    recipe = plain_recipe(shape, possible)
    return replace(recipe, input=replace(recipe.input, hazard=FAR, strength=strength))


def _far_below_zero(plan: Plan, possible: Possible) -> Recipe | None:
    """Return rows of numbers whose exponentials are all 0, where the largest is taken away first.

    It comes besides the pairs: in these, rows of several columns that are all so small come late.
    """
    the_op, shape = possible.op, shape_of_spread(plan, possible)
    hazards = plan.hazards or hazard_names(finite_only=True)
    exponential = the_op.shift_invariant and not the_op.needs_variance
    if not exponential or "eps" not in plan.must or FAR not in hazards or shape is None:
        return None
    recipe = plain_recipe(shape, possible)
    far = replace(recipe.input, hazard=FAR, strength=FAR_BELOW, negative=True)
    return replace(recipe, input=far)


def largest_mean(subject: Subject, plan: Plan) -> int | None:
    """Return the power of ten of the largest mean that a PASS must have tried, in standard deviations.

    It is well inside of what the domain promises, since deviations are drawn; None where means are not taken.
    """
    the_op, domain = named_op(subject.op), subject.domain
    hazards = plan.hazards or hazard_names(finite_only=True)
    centred = the_op.shift_invariant and the_op.needs_variance
    if not centred or "eps" not in plan.must or FAR not in hazards:
        return None
    promised = Domain() if domain is None else domain
    largest = USUAL_MEAN if promised.max_kappa is None else promised.max_kappa / 2
    largest = largest if promised.max_abs is None else min(largest, promised.max_abs / 2)
    return sum(10.0**k <= largest for k in range(1, STRONGEST + 1)) or None


def shape_of_spread(plan: Plan, possible: Possible, variant: int = 0) -> tuple[int, int] | None:
    """Return the first shape with rows of more than a few columns."""
    wide = (shape for shape in cover_shapes(plan) if shape[0] > 0 and shape[1] > FEW_COLUMNS)
    return next((shape for shape in wide if possible.shapes(*shape, variant)), None)


def _cut_from_matrices(subject: Subject, plan: Plan, possible: Possible) -> Iterator[Recipe]:
    """Yield rows of whole vectors that were cut out of matrices, in all tensors like the input alike.

    One that was a column: its elements lie apart, a row by 1. No level of layouts alone shows that: of one
    row, other layouts leave the columns together, or rows apart. And rows of wider matrices: only the first
    begins where a vector may, and no other tensor keeps a kernel from reading vectors.
    """
    for cut, several in ((CUT, False), (PADDED, True)):
        shapes = (s for s in cover_shapes(plan) if (s[0] > 1) == several and in_vectors(*s))
        shape = next((s for s in shapes if possible.shapes(*s, 0)), None)
        if shape is not None and (laid := _laid_alike(cut, shape, 0, subject, possible)):
            yield plain_recipe(shape, possible, layout=laid)


def _axes_exchanged(subject: Subject, plan: Plan, possible: Possible) -> Iterator[Recipe]:
    """Yield rows to which three axes lead, in reverse order in memory, in all tensors like the input alike.

    No step of one axis follows from another's; a kernel may take that of samples for tokens times theirs.
    Then all axes in reverse order: others than the last may have a step of 1.
    """
    for shape in cover_shapes(plan):
        for variant in plan.variants_of(possible.op):
            found = possible.shapes(*shape, variant)
            leading = () if found is None else found.tensors["input"][:-1]
            three = len(leading) > 2 and min(leading[:3]) > 1 and not shape[0] % math.prod(leading[:3])
            exchanged = (LEADING[0], REVERSED) if three else ()
            laid = [_laid_alike(layout, shape, variant, subject, possible) for layout in exchanged]
            if any(laid):
                yield from (
                    plain_recipe(shape, possible, variant=variant, layout=alike) for alike in laid if alike
                )
                return


def four_axes_lead(plan: Plan, possible: Possible) -> Recipe | None:
    """Return rows to which four axes lead, where each rank must be tried: a kernel for three joins others."""
    for shape in cover_shapes(plan) if "variant" in plan.must else ():
        for variant in plan.variants_of(possible.op):
            found = possible.shapes(*shape, variant)
            full = () if found is None else found.tensors["input"]
            if len(full) > 4 and min(full[:4]) > 1 and math.prod(full[:4]) == shape[0]:
                return plain_recipe(shape, possible, variant=variant)
    return None


def _laid_alike(
    layout: Layout, shape: tuple[int, int], variant: int, subject: Subject, possible: Possible
) -> tuple[tuple[str, Layout], ...]:
    plan, found = possible.plan, possible.shapes(*shape, variant)
    if found is None or not {*layout.kinds} <= {*plan.layouts} or plan.placements:
        return ()
    names = [n for n in plan.laid_out(possible.op, subject) if n not in subject.mutates]
    like = [n for n in names if found.tensors.get(n, ()) == found.tensors["input"]]
    return tuple((n, layout) for n in like if shows(found, n, layout))


def plain_recipe(shape: tuple[int, int], possible: Possible, **levels: object) -> Recipe:
    """Return the recipe of ordinary numbers in a shape, with all that may be given."""
    values = {"hazard": "ordinary", "strength": MILDEST, "gradient": "ordinary", "joint": None}
    given = {name: name in possible.given for name in ("weight", "bias", *possible.op.varied)}
    held = {"shape": shape, "variant": 0, "layout": (), "eps": possible.plan.eps[0]}
    return recipe_of({**held, **values, **given, **levels}, 0, possible.op)


def in_vectors(rows: int, columns: int) -> bool:
    """Return whether rows are several of the widest vectors long, and nothing else."""
    return rows > 0 and columns >= 4 * VECTOR and columns % VECTOR == 0


def recipe_of(choice: Choice, number: int, op: Op) -> Recipe:
    """Return the recipe of a choice of levels; number: the seed of all its numbers."""
    (rows, columns), aimed = choice["shape"], choice["strength"]
    held = choice.get("parameter_dtype")
    weight_dtype, bias_dtype = held if isinstance(held, tuple) else (held, None)
    recipe = Recipe(
        rows=rows,
        columns=columns,
        variant=choice["variant"],
        input=Values(
            hazard=choice["hazard"],
            strength=aimed.strength,
            seed=number,
            scale=SMALL_SCALE if choice["eps"] == 0 else 0,
        ),
        weight=Values(seed=number) if choice["weight"] else None,
        bias=Values(seed=number) if choice["bias"] else None,
        further=tuple((name, _varied(op, name, number) if choice[name] else None) for name in op.varied),
        grad_output=Values(seed=number, hazard=choice["gradient"]),
        joint=choice["joint"],
        layouts=choice["layout"],
        eps=choice["eps"],
        parameter_dtype=weight_dtype,
        bias_dtype=bias_dtype,
        residual_dtype=choice.get("residual_dtype"),
    )
    return recipe.carried_by(aimed.tensor)


def _varied(op: Op, name: str, number: int) -> Values:
    """Return the ordinary numbers of a tensor in a case, multiplied by the next of the op's powers of two."""
    scales = op.scales.get(name, (0,))
    return Values(seed=number, scale=scales[number % len(scales)])
