"""Recipes: small seeded descriptors of whole cases, a strategy that draws them and a list to begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
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
from verifier.pairs import Choice, Factor, pairwise
from verifier.subjects import Domain, Subject

FEW_SHAPES = ((4, 33), (2, 1000), (3, 128), (1, 1), (16, 64), (1, 4097), (300, 16), (0, 16))
"""Few compilations: a tail, a long row, full blocks, one element, a longer row, many rows, none."""

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
    parameters: whether weight and bias occur where they may be left out. placements: layouts by tensor to
    choose from, in the place of what `layouts` would draw. must: factors of the fixed list, beside
    layouts, of which every level must be tried for a PASS.
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
    max_rank: int | None = None
    must: tuple[str, ...] = ()

    def within(self, domain: Domain | None) -> Plan:
        """Return the plan restricted to what a domain accepts, as far as that is known without numbers."""
        if domain is None:
            return self
        accepted = {*self.layouts} if domain.layouts is None else {*domain.layouts, "contiguous"}
        inside = replace(
            self,
            min_rows=max(self.min_rows, domain.min_rows),
            min_columns=max(self.min_columns, domain.min_columns),
            max_rows=_least(self.max_rows, domain.max_rows),
            max_columns=_least(self.max_columns, domain.max_columns),
            max_rank=domain.max_rank,
            layouts=tuple(kind for kind in self.layouts if kind in accepted) or ("contiguous",),
            placements=tuple(
                level
                for level in self.placements
                if domain.layouts is None or {k for _, layout in level for k in layout.kinds} <= accepted
            ),
        )
        fitting = self.shapes and tuple(shape for shape in self.shapes if inside.fits(*shape))
        return replace(inside, shapes=fitting or None)

    @property
    def empty(self) -> bool:
        """Whether no extents fit."""
        return not self.fits(self.min_rows, self.min_columns)

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


def _least(extent: int, limit: int | None) -> int:
    return extent if limit is None else min(extent, limit)


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
        # One value has no spread by its shape: min_columns says whether it is promised, and no kappa does.
        kappa = np.where((mean == 0) | (rows.shape[1] == 1), 0.0, np.abs(mean) / deviation)
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


STRENGTHS = (0, 3, 1, 5, 2, 4, 6, 7)
"""Of hazards, in the order in which the fixed list takes them: mild, harder, and all that lies between."""
_PLAIN = 2.5
"""How often values are ordinary for each time that they are of another hazard."""
_MILD = 8.0
"""How often a hazard is of strength 0 for each time that it is of another."""
_GIVEN = 4.0
"""How often weight, or bias, is given for each time that it is left out."""
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
    if not _cover_shapes(plan):
        return
    possible = _Possible(named_op(subject.op), subject, plan)
    made: list[Recipe] = []
    number = 0

    def wanted(choice: Choice) -> bool:
        made[:] = [_recipe(choice, number)]
        return accept(made[0])

    for _ in pairwise(factors(subject, plan), possible=possible, accept=wanted, patience=patience):
        yield made[0]
        number += 1


def factors(subject: Subject, plan: Plan) -> list[Factor]:
    """Return what the fixed list varies, the first factor's levels being taken in turn."""
    the_op = named_op(subject.op)
    hazards = plan.hazards or hazard_names(finite_only=True)
    given = {name: _given(the_op, subject, plan, name) for name in ("weight", "bias")}
    gradients = plan.gradients or "grad_output" in the_op.tensors
    has_eps = the_op.needs_variance or the_op.own or "rstd" in the_op.tensors  # a softmax has none
    joints = [
        name
        for name, hazard in (joint_hazards() if plan.joint else {}).items()
        if ("grad_output" not in hazard.NEEDS or gradients)
        and ("weight" not in hazard.NEEDS or True in given["weight"])
        and (name != "eps_dominated" or has_eps)
    ]
    every = {
        "layout": Factor(name="layout", levels=_cover_layouts(plan, subject)),
        "hazard": Factor(
            name="hazard", levels=hazards, weights=[_PLAIN if h == "ordinary" else 1.0 for h in hazards]
        ),
        "shape": Factor(name="shape", levels=_cover_shapes(plan)),
        "variant": Factor(
            name="variant", levels=range(the_op.variants), weights=[_USUAL] + [1.0] * (the_op.variants - 1)
        ),
        "strength": _strengths(hazards),
        "gradient": Factor(name="gradient", levels=_GRADIENT_HAZARDS if gradients else _GRADIENT_HAZARDS[:1]),
        "joint": Factor(name="joint", levels=(None, *joints), weights=[_ALONE] + [1.0] * len(joints)),
        "eps": Factor(name="eps", levels=plan.eps if has_eps else plan.eps[:1]),
        **{n: Factor(name=n, levels=levels, weights=(_GIVEN, 1.0)) for n, levels in given.items()},
    }
    leading = next(
        (
            n
            for n in (*plan.must, "layout", "hazard")
            if n in plan.must or len(every[n].levels) > len(every["shape"].levels) // 2
        ),
        "shape",
    )
    return [every[leading], *(factor for name, factor in every.items() if name != leading)]


def _strengths(hazards: Sequence[str]) -> Factor:
    """Return the strengths of hazards, of which ordinary numbers have none.

    The mildest comes most often, except where a check asks for hazards alone: it aims at hard numbers.
    """
    levels = STRENGTHS if set(hazards) != {"ordinary"} else (0,)
    mild = _MILD if "ordinary" in hazards else 1.0
    return Factor(name="strength", levels=levels, weights=[mild] + [1.0] * (len(levels) - 1))


def _given(op: Op, subject: Subject, plan: Plan, name: str) -> tuple[bool, ...]:
    """Return whether a parameter is given, left out, or both in turn."""
    if name not in op.tensors or name not in subject.signature:
        return (False,)
    if name in subject.always_given or name not in op.optional:
        return (True,)
    return (True, False) if plan.parameters else (False,)


def _recipe(choice: Choice, number: int) -> Recipe:
    rows, columns = choice["shape"]
    return Recipe(
        rows=rows,
        columns=columns,
        variant=choice["variant"],
        input=Values(hazard=choice["hazard"], strength=choice["strength"], seed=number),
        weight=Values(seed=number) if choice["weight"] else None,
        bias=Values(seed=number) if choice["bias"] else None,
        grad_output=Values(seed=number, hazard=choice["gradient"]),
        joint=choice["joint"],
        layouts=choice["layout"],
        eps=choice["eps"],
    )


class _Possible:
    """Whether the op and the subject have a case of some levels, as far as shapes tell."""

    def __init__(self, op: Op, subject: Subject, plan: Plan) -> None:
        self.op, self.subject, self.plan = op, subject, plan
        self.known: dict[tuple[int, int, int], Shapes | None] = {}
        self.fits: dict[Any, bool] = {}

    def __call__(self, choice: Choice) -> bool:
        joint, layout = choice.get("joint"), choice.get("layout", ())
        needs = {*joint_hazards()[joint].NEEDS} if joint else set()
        absent = {name for name in ("weight", "bias") if choice.get(name) is False}
        # A joint hazard replaces the gradient that a recipe would draw.
        replaced = "grad_output" in needs and choice.get("gradient", "ordinary") != "ordinary"
        if replaced or absent & (needs | {name for name, _ in layout}):
            return False
        key = (choice.get("shape"), choice.get("variant"), layout)
        if key not in self.fits:
            extents = _cover_shapes(self.plan) if key[0] is None else [key[0]]
            variants = range(self.op.variants) if key[1] is None else [key[1]]
            laid = (self.shapes(rows, columns, variant) for rows, columns in extents for variant in variants)
            self.fits[key] = any(s is not None and all(_shows(s, n, p) for n, p in layout) for s in laid)
        return self.fits[key]

    def shapes(self, rows: int, columns: int, variant: int) -> Shapes | None:
        """Return the shapes of a variant that the subject takes within the plan, or None."""
        key = (rows, columns, variant)
        if key not in self.known:
            found = self.op.shapes(rows, columns, variant)
            taken = found is not None and _takes(self.op, self.subject, found)
            deep = (
                self.plan.max_rank is not None and found and len(found.tensors["input"]) > self.plan.max_rank
            )
            self.known[key] = found if taken and not deep else None
        return self.known[key]


def _shows(shapes: Shapes, name: str, layout: Layout) -> bool:
    """Return whether a tensor is there and can lie so, otherwise than contiguous."""
    shape = shapes.tensors.get(name)
    return shape is not None and layout.applies_to(shape) and layout.differs(shape)


def to_be_tried(subject: Subject, plan: Plan) -> list[str]:
    """Return what a PASS needs: each tensor with each kind of layout, and what the plan names beside.

    Layouts are those that the plan asks for and the subject can be given.
    """
    possible = _Possible(named_op(subject.op), subject, plan)
    every = [
        s
        for r, c in _cover_shapes(plan)
        for v in range(possible.op.variants)
        if (s := possible.shapes(r, c, v))
    ]
    wanted = {
        f"{name} {kind}": None
        for level in _cover_layouts(plan, subject)
        for name, layout in level
        if any(_shows(shapes, name, layout) for shapes in every)
        for kind in layout.kinds
    }
    return [*wanted, *(_of_strength(plan, s) for s in STRENGTHS if "strength" in plan.must)]


def tried(recipe: Recipe, case: Case, plan: Plan) -> set[str]:
    """Return what of `to_be_tried` a case shows."""
    layouts = {f"{name} {kind}" for name, layout in case.layouts.items() for kind in layout.kinds}
    return layouts | {_of_strength(plan, recipe.input.strength)}


def _of_strength(plan: Plan, strength: int) -> str:
    return f"{' '.join(plan.hazards or ())} of strength {strength}"


def _cover_shapes(plan: Plan) -> list[tuple[int, int]]:
    wanted = (
        *((4, 33), (2, 1000), (3, 128), (1, 1), (7, 2), (16, 64), (1, 1024), (1000, 4), (64, 48), (2, 1025)),
        *((33, 3), (3, 769), (129, 16), (1, 4097), (0, 16), (5, 257), (2, 31), (1, 8192), (5, 4), (300, 8)),
    )
    fitting = [shape for shape in plan.shapes or wanted if plan.fits(*shape)]
    edge = (max(plan.min_rows, 1), max(plan.min_columns, 1))
    return fitting or ([edge] if plan.fits(*edge) else [])


_PATTERNS: tuple[Layout, ...] = (
    Layout(column_step=2),
    Layout(row_padding=3),
    Layout(order="transposed"),
    Layout(expanded="rows"),
    Layout(misaligned=True),
    Layout(storage_offset=16),
    Layout(row_step=2),
    Layout(expanded="all"),
    Layout(order="channels_last"),
)
"""One of each kind of layout, and two where a tensor has two axes for it, the most telling first."""


def _cover_layouts(plan: Plan, subject: Subject) -> list[tuple[tuple[str, Layout], ...]]:
    """Return layouts by tensor: of all parameters at once, of the others, then of one tensor alone.

    Those at once show every tensor in every kind within few cases; a failure is shrunk to one tensor.
    """
    if plan.placements:
        return list(plan.placements)
    patterns = [layout for layout in _PATTERNS if {*layout.kinds} <= {*plan.layouts}]
    plain: list[tuple[tuple[str, Layout], ...]] = [()]
    if not patterns:
        return plain
    op = named_op(subject.op)
    names = [n for n in op.tensors if n not in op.derived and n in subject.signature]
    names += ["grad_output"] if plan.gradients and "grad_output" not in names else []
    shapes = op.shapes(2, 12, 0)
    assert shapes is not None
    like = [n for n in names if shapes.tensors.get(n, ()) == shapes.tensors["input"]]
    vectors = [n for n in names if n not in like]
    together: list[tuple[tuple[str, Layout], ...]] = []
    for number, layout in enumerate(patterns):
        # Of other kinds each, so that a stride taken from another tensor is a wrong one.
        turned = tuple((n, patterns[(number + k) % len(patterns)]) for k, n in enumerate(like))
        together += [tuple((n, layout) for n in vectors), turned]
    alone = [((name, layout),) for layout in patterns for name in names]
    # What is changed in place cannot be expanded: its elements would share memory.
    shown = [
        tuple((n, p) for n, p in level if n not in subject.mutates or p.expanded == "none")
        for level in (*together, *alone)
    ]
    return [
        *dict.fromkeys(level for level in shown if level),
        *(plain if "contiguous" in plan.layouts else []),
    ]


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
    for name in ("weight", "bias"):
        numbers = values(hazards=_PARAMETER_HAZARDS, dtype=dtype, mixed_rows=False)
        given = _given(op, subject, plan, name)
        parameters[name] = draw(st.none() | numbers if len(given) > 1 else numbers) if True in given else None
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
