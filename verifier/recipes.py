"""Recipes: small seeded descriptors of whole cases, a strategy that draws them and a list to begin with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import count, cycle
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from strategies.hazards import hazard_names
from strategies.layouts import Layout, layouts
from strategies.shapes import row_column_shapes
from strategies.values import Values, values
from verifier.case import Case
from verifier.hazards import joint_hazards
from verifier.ops import Op, Shapes, from_rows
from verifier.ops import op as named_op
from verifier.subjects import Subject

FEW_SHAPES = ((4, 33), (3, 128), (1, 1), (2, 1000), (16, 64), (1, 4097), (300, 16), (0, 16))
"""Few compilations: a tail, full blocks, one element, a long row, a longer one, many rows, none."""

EPS_CHOICES = (1e-5, 1e-6, 1e-12, 1e-3, 0.5)
"""1e-5 and 1e-6 are the usual defaults; 1e-12 underflows in fp16; 0.5 makes a misplaced eps obvious."""

DEFAULT_EPS = 1e-5
"""eps of torch.nn.functional.layer_norm, batch_norm and group_norm where none is given."""

ORDINARY = Values()
_PARAMETER_HAZARDS = ("ordinary", "powers_of_two", "small_integers", "lognormal", "alternating_signs")
_GRADIENT_HAZARDS = (
    "ordinary",
    "one_outlier",
    "alternating_signs",
    "lognormal",
    "small_integers",
    "single_nonzero",
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What kind of cases a check needs.

    layouts: kinds of layouts to draw; hazards: of the input (None: every finite one).
    gradients: whether grad_output is part of the case. Extents that are drawn stay within the limits.
    shapes: draw (rows, columns) from these alone, where every new shape is a compilation.
    parameters: whether weight and bias occur. placements: layouts by tensor to choose from, in the
    place of what `layouts` would draw.
    """

    gradients: bool = False
    layouts: tuple[str, ...] = ("contiguous",)
    hazards: tuple[str, ...] | None = None
    joint: bool = True
    max_elements: int = 16384
    max_rows: int = 4096
    max_columns: int = 8193
    min_rows: int = 0
    min_columns: int = 0
    eps: tuple[float, ...] = EPS_CHOICES
    shapes: tuple[tuple[int, int], ...] | None = None
    parameters: bool = True
    placements: tuple[tuple[tuple[str, Layout], ...], ...] = ()

    def few_shapes(self) -> Plan:
        """Return the plan restricted to the few shapes that fit it, unless it names its own."""
        if self.shapes:
            return self
        return replace(self, shapes=tuple(s for s in FEW_SHAPES if self.fits(*s)) or None)

    def fits(self, rows: int, columns: int) -> bool:
        """Return whether extents lie within the limits."""
        return (
            rows * columns <= self.max_elements
            and self.min_rows <= rows <= self.max_rows
            and self.min_columns <= columns <= self.max_columns
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class Recipe:
    """A whole case in a line: extents, values of each tensor, layouts, a joint hazard and eps."""

    rows: int
    columns: int
    variant: int = 0
    input: Values = ORDINARY
    weight: Values | None = ORDINARY
    bias: Values | None = ORDINARY
    grad_output: Values = ORDINARY
    joint: str | None = None
    layouts: tuple[tuple[str, Layout], ...] = ()
    eps: float = 1e-5

    def __repr__(self) -> str:
        """Print what differs from the default, as Python reads it."""
        given = ((f.name, getattr(self, f.name), f.default) for f in fields(self))
        return (
            f"Recipe({', '.join(f'{name}={value!r}' for name, value, default in given if value != default)})"
        )

    @property
    def hazard(self) -> str:
        """The word for what the case aims at."""
        return self.joint or self.input.hazard


def build(op: Op, subject: Subject, dtype: str, recipe: Recipe, *, gradients: bool) -> Case | None:
    """Make the case that a recipe describes, or None where the op or the subject has no such case."""
    shapes = op.shapes(recipe.rows, recipe.columns, recipe.variant)
    if shapes is None or not _takes(op, subject, shapes):
        return None
    # A kernel without an argument eps has one of its own: PyTorch's default, or its domain ends there.
    fixed = "eps" not in subject.signature and not op.derived
    scalars = {**shapes.scalars, "eps": DEFAULT_EPS if fixed else recipe.eps}
    tensors = _fill(op, subject, dtype, recipe, shapes, gradients=gradients)
    if recipe.joint is not None:
        hazard = joint_hazards()[recipe.joint]
        if any(tensors.get(name) is None for name in hazard.NEEDS):
            return None
        tensors |= hazard.apply(op, _view(op, dtype, op.complete(tensors, scalars, subject), scalars))
    layouts_used = {
        name: layout
        for name, layout in recipe.layouts
        if (t := tensors.get(name)) is not None and layout.applies_to(t.shape)
    }
    tensors = {
        n: layouts_used[n].project(t).contiguous() if t is not None and n in layouts_used else t
        for n, t in tensors.items()
    }
    tensors = op.complete(tensors, scalars, subject)
    return assemble(op, dtype, tensors, scalars, layouts_used, hazard=recipe.hazard, origin=repr(recipe))


def assemble(
    op: Op,
    dtype: str,
    tensors: Mapping[str, torch.Tensor | None],
    scalars: Mapping[str, Any],
    layouts_used: Mapping[str, Layout],
    *,
    hazard: str,
    origin: str,
) -> Case:
    """Make a case of given tensors; the op reads extents and dependent scalars off them."""
    case = _view(op, dtype, tensors, scalars)
    case = replace(case, layouts=dict(layouts_used), hazard=hazard, origin=origin)
    kappa, largest = _magnitudes(op, case)
    return replace(case, kappa=kappa, largest=largest)


def _magnitudes(op: Op, case: Case) -> tuple[float, float]:
    x = case.given["input"].double().numpy()
    if x.size == 0:
        return 0.0, 0.0
    rows = op.canonical(case, "input", x)
    with np.errstate(all="ignore"):
        mean = rows.mean(axis=1)
        deviation = rows.std(axis=1)
        kappa = np.where(mean == 0, 0.0, np.abs(mean) / deviation)
    return float(np.nanmax(kappa, initial=0.0)), float(np.nanmax(np.abs(x), initial=0.0))


def _takes(op: Op, subject: Subject, shapes: Shapes) -> bool:
    """Whether the subject's signature has room for these scalars: no normalized_shape means one dimension."""
    trailing = shapes.scalars.get("normalized_shape")
    fits = trailing is None or len(trailing) == 1 or "normalized_shape" in subject.signature
    # Running statistics are absent by variant: one who cannot do without them has no such case.
    wanted = subject.required.intersection(op.tensors) - set(op.derived)
    return fits and wanted <= set(shapes.tensors) and op.takes(subject, shapes)


def _fill(
    op: Op, subject: Subject, dtype: str, recipe: Recipe, shapes: Shapes, *, gradients: bool
) -> dict[str, torch.Tensor | None]:
    tensors: dict[str, torch.Tensor | None] = {}
    view = _view(op, dtype, {"input": torch.empty(shapes.tensors["input"])}, shapes.scalars)
    for name in (*op.tensors, *(("grad_output",) if gradients and "grad_output" not in op.tensors else ())):
        # Tensors that a recipe does not speak of (running statistics) are ordinary, of the input's seed.
        recipe_of: Values | None = getattr(recipe, name, Values(seed=recipe.input.seed))
        if recipe_of is None and name in subject.required:
            recipe_of = Values(seed=recipe.input.seed)
        absent = recipe_of is None or (name in op.optional and name not in subject.signature)
        absent = absent or (name not in shapes.tensors and name not in op.derived)
        if name in op.derived or absent:
            tensors[name] = None
            continue
        assert recipe_of is not None
        # Two tensors of the same recipe must not be the same numbers.
        of_its_own = replace(recipe_of, seed=recipe_of.seed + sum(map(ord, name)) * 7919)
        shape = shapes.tensors[name]
        if shape == shapes.tensors["input"]:
            rows = of_its_own.fill((view.rows, view.columns), dtype)
            tensors[name] = from_rows(op, view, name, rows)
        else:  # a vector of parameters, or of statistics, is one row
            tensors[name] = of_its_own.fill(shape, dtype, axes=tuple(range(len(shape))))
    return tensors


def _view(op: Op, dtype: str, tensors: Mapping[str, torch.Tensor | None], scalars: Mapping[str, Any]) -> Case:
    """Return a case of tensors that are not all there yet: it knows its extents and canonical rows."""
    rows, columns, known = op.extents(tensors, scalars)
    return Case(op=op.name, dtype=dtype, tensors=dict(tensors), scalars=known, rows=rows, columns=columns)


def covering(subject: Subject, plan: Plan) -> Iterator[Recipe]:
    """Yield a fixed list without end: every hazard and layout in turn, over shapes at block edges."""
    hazards = plan.hazards or hazard_names(finite_only=True)
    shapes = cycle(_cover_shapes(plan))
    variants = cycle((0, 0, 1, 2, 0, 3, 4, *range(5, named_op(subject.op).variants)))
    epsilons = cycle(plan.eps)
    kinds = cycle(_cover_layouts(plan, subject))
    joints = cycle((None, None, *(joint_hazards() if plan.joint else ())))
    numbers = count()
    for strength in cycle((0, 3, 1, 5, 2, 4, 6, 7)):
        for index, hazard in enumerate(hazards):
            number = next(numbers)  # also a plan of few hazards gets every kind of parameters and gradients
            rows, columns = next(shapes)
            joint = next(joints)
            yield Recipe(
                rows=rows,
                columns=columns,
                variant=next(variants),
                input=Values(hazard=hazard, strength=strength, seed=index + 100 * strength),
                weight=None if number % 5 == 4 or not plan.parameters else Values(seed=index),
                bias=None if number % 7 == 4 or not plan.parameters else Values(seed=index),
                grad_output=Values(seed=index, hazard=_GRADIENT_HAZARDS[number % len(_GRADIENT_HAZARDS)]),
                joint=joint if hazard == "ordinary" or index % 3 == 0 else None,
                layouts=next(kinds),
                eps=next(epsilons),
            )


def _cover_shapes(plan: Plan) -> list[tuple[int, int]]:
    wanted = (
        *((4, 33), (3, 128), (1, 1), (2, 1000), (5, 257), (16, 64), (1, 1024), (7, 2), (64, 48), (2, 1025)),
        *((33, 3), (3, 769), (129, 16), (1, 4097), (0, 16), (300, 8), (2, 31), (1, 8192), (6, 500)),
    )
    fitting = [shape for shape in plan.shapes or wanted if plan.fits(*shape)]
    return fitting or [(max(plan.min_rows, 1), max(plan.min_columns, 1))]


def _cover_layouts(plan: Plan, subject: Subject) -> list[tuple[tuple[str, Layout], ...]]:
    """Return one layout on one tensor at a time, then on all: a failure names its tensor."""
    if plan.placements:
        return list(plan.placements)
    plain: list[tuple[tuple[str, Layout], ...]] = [()]
    odd = [kind for kind in plan.layouts if kind != "contiguous"]
    if not odd:
        return plain
    settings = {
        "transposed": Layout(order="transposed"),
        "padded_rows": Layout(row_padding=3),
        "sliced": Layout(column_step=2),
        "storage_offset": Layout(storage_offset=16),
        "misaligned": Layout(misaligned=True),
        "expanded": Layout(expanded="all"),
        "channels_last": Layout(order="channels_last"),
    }
    names = ["input", *(("grad_output",) if plan.gradients else ())]
    names += [n for n in ("weight", "bias") if n in subject.signature]
    singles = [((name, settings[kind]),) for kind in odd for name in names if kind in settings]
    expanded_rows = (
        [(("grad_output", Layout(expanded="rows")),)] if plan.gradients and "expanded" in odd else []
    )
    return [*singles, *expanded_rows, (("input", Layout(row_step=2)),)]


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
    parameters = {
        name: draw(st.none() | values(hazards=_PARAMETER_HAZARDS, dtype=dtype, mixed_rows=False))
        if plan.parameters and name in op.optional and name in subject.signature
        else None
        for name in ("weight", "bias")
    }
    gradient = Values()
    if plan.gradients:
        gradient = draw(values(hazards=_GRADIENT_HAZARDS, dtype=dtype))
    joint = draw(st.sampled_from((None, None, None, *joint_hazards()))) if plan.joint else None
    variant = draw(st.integers(0, op.variants - 1))
    recipe = Recipe(
        rows=rows,
        columns=columns,
        variant=variant,
        input=input_values,
        weight=parameters["weight"],
        bias=parameters["bias"],
        grad_output=gradient,
        joint=joint,
        eps=draw(st.sampled_from(plan.eps)),
    )
    if plan.placements:
        return replace(recipe, layouts=draw(st.sampled_from(plan.placements)))
    return replace(recipe, layouts=_draw_layouts(draw, op, subject, recipe, plan))


def _draw_layouts(
    draw: st.DrawFn, op: Op, subject: Subject, recipe: Recipe, plan: Plan
) -> tuple[tuple[str, Layout], ...]:
    shapes = op.shapes(recipe.rows, recipe.columns, recipe.variant)
    if shapes is None or plan.layouts == ("contiguous",):
        return ()
    names = [n for n in op.tensors if n not in op.derived and n in subject.signature and n in shapes.tensors]
    names += ["grad_output"] if plan.gradients and "grad_output" not in names else []
    # What is changed in place cannot be expanded: its elements would share memory.
    alone = tuple(kind for kind in plan.layouts if kind != "expanded")
    allowed = {n: alone if n in subject.mutates else plan.layouts for n in names}
    chosen = [(n, draw(layouts(allow=allowed[n], shape=shapes.tensors[n]))) for n in names]
    return tuple((n, layout) for n, layout in chosen if layout != Layout())
