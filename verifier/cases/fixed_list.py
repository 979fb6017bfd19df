"""The fixed list of recipes that every search begins with: any two levels of two factors meet in it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from strategies.hazards import hazard_names
from strategies.layouts import Layout
from strategies.values import Values
from verifier.cases.besides_pairs import (
    FAR,
    SMALL_SCALE,
    TINY_SCALE,
    VECTOR,
    besides,
    four_axes_lead,
    in_vectors,
    largest_mean,
    plain_recipe,
    recipe_of,
    shape_of_spread,
)
from verifier.cases.extents_and_layouts import cover_layouts, cover_shapes
from verifier.cases.hazards import joint_hazards
from verifier.cases.pairwise import Choice, Factor, pairwise
from verifier.cases.plan import EDGE_EPS, GRADIENT_HAZARDS, Plan
from verifier.cases.possible_choices import FEW_COLUMNS, STRENGTHS, Aimed, Possible, shows
from verifier.cases.recipe import EPS_NONE, Eps, Recipe, eps_meant
from verifier.ops import Shapes
from verifier.ops import op as named_op
from verifier.records.case import Case
from verifier.records.subject import ADDED, INPUT, PARAMETERS, Subject

CARRIED_STRENGTHS = (0, 1)
"""The same where another tensor carries the hazard: NaN, then infinity."""
LATER = 10
"""Choices of pairs before the most axes: what few cases are to show comes before them."""
_PLAIN = 2.5
"""How often values are ordinary for each time that they are of another hazard."""
_MILD = 8.0
"""How often a hazard is of strength 0 for each time that it is of another."""
_GIVEN = 4.0
"""How often weight, or bias, is given for each time that it is left out."""
_SAME, _OTHER = 4.0, 5.0
"""How often weight and bias have the input's dtype, and another, for each time that they have two.

Another comes more often: where it is wider, loads and offsets that fit the input are wrong for it.
"""
_ALONE = 6.0
"""How often there is no joint hazard for each time that there is one of a kind."""
_USUAL = 3.0
"""How often tensors have two dimensions for each time that they have those of another variant."""


def covering(
    subject: Subject,
    plan: Plan,
    *,
    accept: Callable[[Recipe], bool] = lambda _: True,
    patience: int = 400,
) -> Iterator[Recipe]:
    """Yield a fixed list in which every two levels of two factors meet, as far as they can (see `pairs`).

    accept: which recipes are wanted. The list ends when all pairs have met, or after `patience` recipes in
    a row that are not wanted.
    """
    if not cover_shapes(plan):
        return
    possible = Possible(named_op(subject.op), subject, plan)
    made: list[Recipe] = []
    number = 0

    def wanted(choice: Choice) -> bool:
        made[:] = [recipe_of(choice, number, possible.op)]
        return accept(made[0])

    early = [*_aligned_otherwise(subject, plan, possible).values()]
    for _ in pairwise(
        factors(subject, plan), possible=possible, accept=wanted, patience=patience, early=early
    ):
        yield made[0]
        number += 1
        if number == max(2, 1 + len(early)):
            yield from (recipe for recipe in besides(subject, plan, possible) if accept(recipe))
        if number == LATER and (deep := four_axes_lead(plan, possible)) and accept(deep):
            yield deep


def unsaid_eps(subject: Subject, plan: Plan, dtype: str) -> tuple[list[str], list[Recipe]]:
    """Return a case whose call says no number as eps, in words and as recipes; none where nothing is asked.

    Where the signature's default is a number, eps is left out; where it is None, None is given in words. The
    first recipe has inputs whose variance is near that number, so that any other is obvious.
    """
    the_op, head = named_op(subject.op), subject.signature.get("eps")
    if not plan.eps_unsaid or not the_op.has_eps or the_op.derived or head is None:
        return [], []
    said: Eps = EPS_NONE if head.default is None else None
    meant = eps_meant(the_op, subject, dtype, said)
    least = subject.domain.min_eps if subject.domain is not None else None
    unnamed = said is None and head.kind is inspect.Parameter.POSITIONAL_ONLY
    possible = Possible(the_op, subject, plan)
    laid = ((v, s) for v in plan.variants_of(the_op) if (s := shape_of_spread(plan, possible, v)))
    variant, shape = next(laid, (0, None))
    if meant is None or meant < (least or 0.0) or unnamed or shape is None:
        return [], []
    plain = plain_recipe(shape, possible, eps=said, variant=variant)
    scale = max(TINY_SCALE, min(0, round(math.log2(meant) / 2))) if meant > 0 else SMALL_SCALE
    return [_of_eps(said)], [replace(plain, input=replace(plain.input, scale=scale)), plain]


def factors(subject: Subject, plan: Plan) -> list[Factor]:
    """Return what the fixed list varies, the first factor's levels being taken in turn."""
    the_op = named_op(subject.op)
    hazards = plan.hazards or hazard_names(finite_only=True)
    given, variants = plan.parameters_of(the_op, subject), plan.variants_of(the_op)
    gradients = plan.gradients or "grad_output" in the_op.tensors
    joints = [
        name
        for name, hazard in (joint_hazards() if plan.joint else {}).items()
        if ("grad_output" not in hazard.NEEDS or gradients)
        and ("weight" not in hazard.NEEDS or True in given["weight"])
        and (name != "eps_dominated" or the_op.has_eps)
    ]
    every = {
        "layout": Factor(name="layout", levels=cover_layouts(plan, subject)),
        "hazard": Factor(
            name="hazard", levels=hazards, weights=[_PLAIN if h == "ordinary" else 1.0 for h in hazards]
        ),
        "shape": Factor(name="shape", levels=cover_shapes(plan)),
        "variant": Factor(name="variant", levels=variants, weights=[_USUAL] + [1.0] * (len(variants) - 1)),
        "strength": _strengths(hazards, plan, plan.carried_by(the_op, subject)),
        "gradient": Factor(name="gradient", levels=GRADIENT_HAZARDS if gradients else GRADIENT_HAZARDS[:1]),
        "joint": Factor(name="joint", levels=(None, *joints), weights=[_ALONE] + [1.0] * len(joints)),
        "eps": Factor(name="eps", levels=plan.eps_of(the_op, subject)),
        **{n: Factor(name=n, levels=levels, weights=(_GIVEN, 1.0)) for n, levels in given.items()},
    }
    dtypes = plan.parameter_dtypes_of(the_op, subject)
    if len(dtypes) > 1:
        mixed = plan.mixed_dtypes_of(the_op, subject)
        levels = (*dtypes, *([] if mixed is None else [mixed]))
        weights = [_SAME] + [_OTHER] * (len(dtypes) - 1) + [1.0] * (len(levels) - len(dtypes))
        every["parameter_dtype"] = Factor(name="parameter_dtype", levels=levels, weights=weights)
    sums = plan.residual_dtypes_of(the_op)
    if sums:
        every["residual_dtype"] = Factor(name="residual_dtype", levels=sums, weights=[1.0] * len(sums))
    many = (n for n in ("layout", "hazard") if len(every[n].levels) > len(every["shape"].levels) // 2)
    leading = plan.leads or next(many, "shape")
    if plan.most is not None:  # of so few, no level waits because another is more usual
        every[leading] = replace(every[leading], weights=[1.0] * len(every[leading].levels))
    return [every[leading], *(factor for name, factor in every.items() if name != leading)]


def _aligned_otherwise(subject: Subject, plan: Plan, possible: Possible) -> dict[str, Choice]:
    """Return what comes early, by its words: misaligned parameters of each dtype, nothing else laid out.

    Rows are as long as several vectors: whether they are read so may be decided by the input's alignment, or
    by the size of its elements where those of parameters are larger. All parameters are given.
    """
    level = next((level for level in cover_layouts(plan, subject) if _only_misaligned(level)), None)
    shape = next((shape for shape in cover_shapes(plan) if in_vectors(*shape)), None)
    if level is None or shape is None or "weight" not in possible.given or not possible.shapes(*shape, 0):
        return {}
    start = {"layout": level, "shape": shape, "variant": 0} | dict.fromkeys(possible.given, True)
    several = len(possible.dtypes) > 1
    every = {_of_misaligned(d): start | ({"parameter_dtype": d} if several else {}) for d in possible.dtypes}
    return {words: choice for words, choice in every.items() if possible(choice)}


def _only_misaligned(level: Sequence[tuple[str, Layout]]) -> bool:
    """Return whether weight lies misaligned, and with it whatever else is laid out."""
    return "weight" in dict(level) and all(layout.kinds == ("misaligned",) for _, layout in level)


def _aims(carriers: Sequence[str]) -> list[Aimed]:
    """Return every strength for the input, which comes first, and few for what else carries the hazard."""
    return [Aimed(n, s) for n in carriers for s in (STRENGTHS if n == "input" else CARRIED_STRENGTHS)]


def _strengths(hazards: Sequence[str], plan: Plan, carriers: Sequence[str]) -> Factor:
    """Return the strengths of hazards, of which ordinary numbers have none.

    The mildest comes most often, except where a check asks for hazards alone: it aims at hard numbers. Where
    each strength must be shown, inputs without elements, which show none, have the mildest (`Possible`).
    """
    empty = sum(0 in shape for shape in cover_shapes(plan)) if "strength" in plan.must else 0
    levels = _aims(carriers) if set(hazards) != {"ordinary"} else _aims(carriers)[:1]
    mild = _MILD if "ordinary" in hazards else 1.0 + empty
    return Factor(name="strength", levels=levels, weights=[mild] + [1.0] * (len(levels) - 1))


def to_be_tried(subject: Subject, plan: Plan) -> list[str]:
    """Return what a PASS needs: each tensor with each kind of layout, and what else the plan names.

    Layouts and levels are those that the plan asks for and the subject can be given.
    """
    possible = Possible(named_op(subject.op), subject, plan)
    every = {
        (r, c, v): s
        for r, c in cover_shapes(plan)
        for v in plan.variants_of(possible.op)
        if (s := possible.shapes(r, c, v))
    }
    wanted = {
        f"{name} {kind}": None
        for level in cover_layouts(plan, subject)
        for name, layout in level
        if any(shows(shapes, name, layout) for shapes in every.values())
        for kind in layout.kinds
    }
    levels = {
        "strength": [
            _of_strength(plan, aimed)
            for aimed in _aims(plan.carried_by(possible.op, subject))
            if not _beyond(subject, plan, aimed)
        ],
        "shape": [_of_extents(r, c) for r, c, _ in every],
        "variant": [_of_ranks(shapes) for shapes in every.values()],
        "eps": [_of_eps(eps) for eps in plan.eps_of(possible.op, subject) if eps in EDGE_EPS],
        "parameter_dtype": [_of_dtype(d) for d in possible.dtypes] if len(possible.dtypes) > 1 else [],
    }
    if possible.mixed is not None:
        levels["parameter_dtype"].append(_MIXED)
    sums = plan.residual_dtypes_of(possible.op)
    levels["residual_dtype"] = [_of_residual(d) for d in sums] if sums else []
    together = _aligned_otherwise(subject, plan, possible)
    mean = largest_mean(subject, plan)
    if mean is not None and shape_of_spread(plan, possible) is not None:
        levels["mean"] = [_of_mean(mean)]
    demanded = (words for factor in (*plan.must, "mean") for words in levels.get(factor, ()))
    return list(dict.fromkeys([*wanted, *demanded, *together]))


def tried(recipe: Recipe, case: Case, plan: Plan) -> set[str]:
    """Return what of `to_be_tried` a case shows."""
    layouts = {f"{name} {kind}" for name, layout in case.layouts.items() for kind in layout.kinds}
    shapes = Shapes(tensors={n: tuple(t.shape) for n, t in case.given.items()}, scalars=case.scalars)
    strength = {_of_strength(plan, _aim_of(plan, recipe))} if case.elements else set()
    return (
        layouts
        | strength
        | {
            _of_extents(case.rows, case.columns),
            _of_ranks(shapes),
            _of_eps(recipe.eps),
        }
        | {_of_dtype(d) for d in _dtypes_of(case, PARAMETERS)}
        | {_of_residual(d) for d in _dtypes_of(case, ADDED)}
        | ({_MIXED} if case.mixes_dtypes else set())
        | _shown_misaligned(case)
        | _shown_means(recipe, case)
    )


def _shown_means(recipe: Recipe, case: Case) -> set[str]:
    """Return the words of every mean up to that of a case whose rows are far from zero."""
    spread = case.rows > 0 and case.columns > FEW_COLUMNS
    far = recipe.input.strength if spread and recipe.input.hazard == FAR else 0
    return {_of_mean(strength) for strength in range(1, far + 1)}


def _shown_misaligned(case: Case) -> set[str]:
    """Return the words of a case whose weight is misaligned where the input can be read in vectors."""
    held = case.dtype_of("weight")
    others = (case.layouts.get(name, Layout()) for name in ("input", "grad_output"))
    alone = in_vectors(case.rows, case.columns) and all(layout == Layout() for layout in others)
    if held is None or not alone or not case.layouts.get("weight", Layout()).misaligned:
        return set()
    return {_of_misaligned(dtype) for dtype in (held, *([INPUT] if held == case.dtype else []))}


def _beyond(subject: Subject, plan: Plan, aimed: Aimed) -> bool:
    """Return whether the input holds infinities where the domain promises nothing of large numbers."""
    if aimed.tensor != "input" or subject.domain is None or subject.domain.max_abs is None:
        return False
    shown = (Values(hazard=h, strength=aimed.strength).fill((1, 8), "float32") for h in plan.hazards or ())
    return any(bool(values.isinf().any()) for values in shown)


def _aim_of(plan: Plan, recipe: Recipe) -> Aimed:
    """Return which tensor of a recipe carries the hazard of the plan."""
    every = ((name, recipe.values_of(name)) for name in plan.carriers)
    carried = (Aimed(n, v.strength) for n, v in every if v is not None and v.hazard in (plan.hazards or ()))
    return next(carried, Aimed("input", recipe.input.strength))


def _of_strength(plan: Plan, aimed: Aimed) -> str:
    told = f"{' '.join(plan.hazards or ())} of strength {aimed.strength}"
    return told if aimed.tensor == "input" else f"{aimed.tensor} {told}"


def _of_mean(strength: int) -> str:
    return f"a mean of {10**strength:g} standard deviations"


def _of_extents(rows: int, columns: int) -> str:
    return f"{rows} rows of {columns}"


def _of_eps(eps: Eps) -> str:
    if eps is None:
        return "eps left out"
    return f"eps={eps:g}" if isinstance(eps, float) else "eps=None"


def _of_dtype(dtype: str) -> str:
    return f"parameters in {dtype}" if dtype != INPUT else "parameters in the input's dtype"


def _of_misaligned(dtype: str) -> str:
    where = f"in rows of whole vectors of {VECTOR}"
    return f"weight misaligned {where}" + ("" if dtype == INPUT else f", with {_of_dtype(dtype)}")


def _of_residual(dtype: str) -> str:
    return f"residual in {dtype}" if dtype != INPUT else "residual in the input's dtype"


def _dtypes_of(case: Case, names: tuple[str, ...]) -> set[str]:
    """Return the dtypes that a case shows these tensors in; "input" is one if it is the input's."""
    held = {dtype for name in names if (dtype := case.dtype_of(name)) is not None}
    return held | ({INPUT} if case.dtype in held else set())


def _of_ranks(shapes: Shapes) -> str:
    """Tell variants apart in words: the rank of the input, and the scalars that go with the shapes."""
    told = {
        name: f"{len(value)}-D" if isinstance(value, tuple) else value
        for name, value in shapes.scalars.items()
        if name in _TELLING
    }
    besides = " and ".join(f"{name} {value}" for name, value in told.items())
    return f"{len(shapes.tensors['input'])}-D input" + (f" with {besides}" if besides else "")


_MIXED = "weight and bias in two dtypes"
_TELLING = ("normalized_shape", "dim", "training")
"""Scalars that go with the shapes and mean something in words."""
