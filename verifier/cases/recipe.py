"""Recipes: small seeded descriptors of whole cases, and the cases that they describe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

import numpy as np
import torch

from strategies.hazards import discover
from strategies.layouts import Layout
from strategies.values import Values
from verifier.cases.hazards import joint_hazards
from verifier.ops import Op, Shapes, from_rows
from verifier.records.case import GIVEN_NONE, LEFT_OUT, Case, Extents, Scalars
from verifier.records.subject import INPUT, PARAMETERS, Subject

DEFAULT_EPS = 1e-5
"""eps of torch.nn.functional.layer_norm, batch_norm and group_norm where none is given."""

EPS_NONE: Final = "none"
"""The eps of a recipe whose call gives None in words."""
Eps = float | Literal["none"] | None
"""What a call says of eps: a number, None in words (`EPS_NONE`), or nothing (None)."""

ORDINARY = Values()


@dataclass(frozen=True, kw_only=True, repr=False)
class Recipe:
    """A whole case in a line: extents, values of each tensor, layouts, a joint hazard and eps.

    eps: None leaves it out, `EPS_NONE` gives None in words. further: values of other tensors by name, None
    where one is left out.
    parameter_dtype: of weight, bias and running statistics, "input" for the input's; None is the first that
    the subject promises. bias_dtype: of bias, where it has another. residual_dtype: of what is added to the
    input and of the gradient of the sum, likewise.
    """

    rows: int
    columns: int
    variant: int = 0
    input: Values = ORDINARY
    weight: Values | None = ORDINARY
    bias: Values | None = ORDINARY
    grad_output: Values = ORDINARY
    joint: str | None = None
    layouts: tuple[tuple[str, Layout], ...] = ()
    eps: Eps = 1e-5
    further: tuple[tuple[str, Values | None], ...] = ()
    parameter_dtype: str | None = None
    bias_dtype: str | None = None
    residual_dtype: str | None = None

    def __repr__(self) -> str:
        """Print what differs from the default, as Python reads it."""
        given = ((f.name, getattr(self, f.name), f.default) for f in fields(self))
        return (
            f"Recipe({', '.join(f'{name}={value!r}' for name, value, default in given if value != default)})"
        )

    def values_of(self, name: str) -> Values | None:
        """Return the values of a tensor, None where it is left out.

        A tensor that the recipe does not speak of (running statistics) is ordinary, of the input's seed.
        """
        if name in {"input", "weight", "bias", "grad_output"}:
            values: Values | None = getattr(self, name)
            return values
        return dict(self.further).get(name, Values(seed=self.input.seed))

    @property
    def hazard(self) -> str:
        """The word for what the case aims at."""
        further = (name for name, _ in self.further)
        values = (self.values_of(name) for name in ("weight", "bias", "grad_output", *further))
        carried = (v.hazard for v in values if v is not None and not discover()[v.hazard].finite)
        return self.joint or next(carried, self.input.hazard)

    def carried_by(self, name: str) -> Recipe:
        """Return the recipe in which another tensor has the values of the input, which are then ordinary."""
        if name == "input":
            return self
        plain = Values(seed=self.input.seed)
        if name in dict(self.further):
            return replace(self, input=plain, further=tuple({**dict(self.further), name: self.input}.items()))
        moved: dict[str, Values] = {name: self.input, "input": plain}
        return replace(self, **moved)  # type: ignore[arg-type]


def build(op: Op, subject: Subject, dtype: str, recipe: Recipe, *, gradients: bool) -> Case | None:
    """Make the case that a recipe describes, or None where the op or the subject has no such case."""
    shapes = op.shapes(recipe.rows, recipe.columns, recipe.variant)
    if shapes is None or not has_room(op, subject, shapes):
        return None
    eps = _eps(op, subject, dtype, recipe.eps)
    if eps is None:
        return None
    scalars = {**shapes.scalars, **op.told(subject, recipe.input.seed), **eps}
    tensors = _fill(op, subject, dtype, recipe, shapes, gradients=gradients)
    if recipe.joint is not None:
        hazard = joint_hazards()[recipe.joint]
        if any(tensors.get(name) is None for name in hazard.NEEDS):
            return None
        changed = hazard.apply(op, _case(op, dtype, op.complete(tensors, scalars, subject), scalars))
        if "input" in changed:  # what is added to it would hide it
            changed |= {n: torch.zeros_like(t) for n in op.alike if (t := tensors.get(n)) is not None}
        tensors |= changed
    layouts_used = {
        name: layout
        for name, layout in recipe.layouts
        if (t := tensors.get(name)) is not None and layout.applies_to(t.shape)
    }
    tensors = {
        n: layouts_used[n].project(t).contiguous() if t is not None and n in layouts_used else t
        for n, t in tensors.items()
    }
    laid_out = tensors
    tensors = op.complete(tensors, scalars, subject)
    # What that changes (a gradient where nothing takes part) may be no values of its layout any more.
    layouts_used = {
        n: layout for n, layout in layouts_used.items() if _shown(layout, laid_out[n], tensors.get(n))
    }
    layouts_used |= _of_derived(op, tensors, recipe)
    case = assemble(op, dtype, tensors, scalars, layouts_used, hazard=recipe.hazard, origin=repr(recipe))
    return replace(case, seed=recipe.input.seed)


def recorded_recipe(op: Op, subject: Subject, rows: int, columns: int, values: Values) -> Recipe:
    """Return that of a case whose expressions are recorded: its shape alone says which elements take part."""
    laid = op.shapes(rows, columns, op.fullest)
    variant = op.fullest if laid is not None and has_room(op, subject, laid) else 0
    masks = tuple((name, None) for name in op.drawn if name in op.optional)
    return Recipe(rows=rows, columns=columns, variant=variant, input=values, further=masks)


def _shown(layout: Layout, before: torch.Tensor | None, after: torch.Tensor | None) -> bool:
    """Return whether a layout can show the values that became of a tensor; what is left out shows any."""
    return after is None or after is before or torch.equal(layout.project(after), after)


def _of_derived(op: Op, tensors: Mapping[str, torch.Tensor | None], recipe: Recipe) -> dict[str, Layout]:
    """Return the layouts of tensors that follow from others (mean, rstd): elements share no memory."""
    return {
        name: layout
        for name, layout in recipe.layouts
        if name in op.derived
        and (t := tensors.get(name)) is not None
        and layout.expanded == "none"
        and layout.applies_to(t.shape)
    }


def _eps(op: Op, subject: Subject, dtype: str, wanted: Eps) -> dict[str, object] | None:
    """Return the scalars that say what eps is, and what the call says of it; None: nothing says it."""
    # A kernel without an argument eps has one of its own: PyTorch's default, or its domain ends there.
    if "eps" not in subject.signature and not op.derived:
        return {"eps": DEFAULT_EPS}
    if isinstance(wanted, float | int):
        return {"eps": wanted}
    meant = eps_meant(op, subject, dtype, wanted)
    return None if meant is None else {"eps": meant, LEFT_OUT if wanted is None else GIVEN_NONE: ("eps",)}


def eps_meant(op: Op, subject: Subject, dtype: str, wanted: Eps) -> float | None:
    """Return the number that a call without one means, by its signature's default; None: nothing says it.

    None is given in words only where the signature has it as its default.
    """
    if isinstance(wanted, float | int):
        return wanted
    head = subject.signature.get("eps")
    default = None if head is None else head.default
    if default is None and op.default_eps is not None:
        return op.default_eps(dtype)
    if wanted is not None or not isinstance(default, float | int) or isinstance(default, bool):
        return None
    return float(default) if math.isfinite(default) else None


def with_own_default(op: Op, subject: Subject, case: Case) -> Case:
    """Return a saved case with the eps that its call means now: a default may have changed since."""
    if "eps" not in case.scalars.get(LEFT_OUT, ()) or "eps" not in subject.signature:
        return case
    meant = eps_meant(op, subject, case.dtype, None)
    return case if meant is None else replace(case, scalars={**case.scalars, "eps": meant})


def assemble(
    op: Op,
    dtype: str,
    tensors: Mapping[str, torch.Tensor | None],
    scalars: Scalars,
    layouts_used: Mapping[str, Layout],
    *,
    hazard: str,
    origin: str,
) -> Case:
    """Make a case of given tensors; the op reads extents and dependent scalars off them."""
    return _case(op, dtype, tensors, scalars, layouts=dict(layouts_used), hazard=hazard, origin=origin)


def with_derived(op: Op, subject: Subject, shapes: Shapes) -> Shapes:
    """Return the shapes with those of tensors that follow from others: mean and rstd, or the output."""
    if not op.derived:
        return shapes
    drawn = {name: torch.zeros(shape) for name, shape in shapes.tensors.items()}
    done = op.complete(drawn, {"eps": DEFAULT_EPS, **shapes.scalars}, subject)
    found = {name: tuple(t.shape) for name in op.derived if (t := done.get(name)) is not None}
    return replace(shapes, tensors={**shapes.tensors, **found})


@dataclass(frozen=True, kw_only=True)
class Laid:
    """Extents of tensors: what an op needs to bring them into canonical rows."""

    rows: int
    columns: int
    scalars: Scalars
    input_shape: tuple[int, ...]


def laid(op: Op, tensors: Mapping[str, torch.Tensor | None], scalars: Scalars) -> Laid:
    """Read extents and dependent scalars off tensors, of which the input is there."""
    x = tensors["input"]
    assert x is not None
    rows, columns, known = op.extents(tensors, scalars)
    return Laid(rows=rows, columns=columns, scalars=known, input_shape=tuple(x.shape))


def _case(
    op: Op, dtype: str, tensors: Mapping[str, torch.Tensor | None], scalars: Scalars, **told: Any
) -> Case:
    """Make a case; told: its fields that say where it comes from and how it lies."""
    extents, x = laid(op, tensors, scalars), tensors["input"]
    assert x is not None
    kappa, largest = _magnitudes(op, extents, op.normalized(tensors, scalars))
    return Case(
        op=op.name,
        dtype=dtype,
        tensors=dict(tensors),
        scalars=extents.scalars,
        rows=extents.rows,
        columns=extents.columns,
        kappa=kappa,
        largest=largest,
        **told,
    )


def _magnitudes(op: Op, extents: Extents, tensor: torch.Tensor) -> tuple[float, float]:
    """Return the largest |mean| / std of a row of what the norm reads, and its largest |element|."""
    x = tensor.double().numpy()
    if x.size == 0:
        return 0.0, 0.0
    rows = op.canonical(extents, "input", x)
    with np.errstate(all="ignore"):
        mean = rows.mean(axis=1)
        deviation = rows.std(axis=1)
        # One value has no spread by its shape: min_columns says whether it is promised, and no kappa does.
        kappa = np.where((mean == 0) | (rows.shape[1] == 1), 0.0, np.abs(mean) / deviation)
    return float(np.nanmax(kappa, initial=0.0)), float(np.nanmax(np.abs(x), initial=0.0))


def has_room(op: Op, subject: Subject, shapes: Shapes) -> bool:
    """Whether the subject's signature has room for these scalars: no normalized_shape means one dimension."""
    trailing = shapes.scalars.get("normalized_shape")
    fits = trailing is None or len(trailing) == 1 or "normalized_shape" in subject.signature
    # Running statistics are absent by variant: one who cannot do without them has no such case.
    wanted = subject.required.intersection(op.tensors) - set(op.derived)
    return fits and wanted <= set(shapes.tensors) and op.takes(subject, shapes)


def _like_the_input(recipe: Recipe) -> Values:
    """Return the values of what is added to the input: hazards of both are those of their sum."""
    finite = discover()[recipe.input.hazard].finite
    return recipe.input if finite else Values(seed=recipe.input.seed)


def _fill(
    op: Op, subject: Subject, dtype: str, recipe: Recipe, shapes: Shapes, *, gradients: bool
) -> dict[str, torch.Tensor | None]:
    tensors: dict[str, torch.Tensor | None] = {}
    extents = laid(op, {"input": torch.empty(shapes.tensors["input"])}, shapes.scalars)
    named = recipe.parameter_dtype or subject.parameter_dtypes[0]
    held = dict.fromkeys(PARAMETERS, named) | {"bias": recipe.bias_dtype or named}
    beside = subject.residual_dtypes_beside(dtype) or (INPUT,)
    held |= dict.fromkeys(op.of_the_sum, recipe.residual_dtype or beside[0])
    incoming = (n for n in op.incoming.values() if gradients and n not in op.tensors)
    for name in (*op.tensors, *incoming):
        recipe_of = _like_the_input(recipe) if name in op.alike else recipe.values_of(name)
        if recipe_of is None and name in subject.required:
            recipe_of = Values(seed=recipe.input.seed)
        absent = recipe_of is None or (name in op.optional and name not in subject.signature)
        absent = absent or (name not in shapes.tensors and name not in op.derived)
        kind = dtype if held.get(name, INPUT) == INPUT else held[name]
        if name in op.derived or absent:
            tensors[name] = None
            continue
        assert recipe_of is not None
        # Two tensors of the same recipe must not be the same numbers.
        of_its_own = replace(recipe_of, seed=recipe_of.seed + sum(map(ord, name)) * 7919)
        shape = shapes.tensors[name]
        if name in op.drawn:
            tensors[name] = op.drawn[name](of_its_own, shape, kind)
        elif shape == shapes.tensors["input"]:
            rows = of_its_own.fill((extents.rows, extents.columns), kind)
            tensors[name] = from_rows(op, extents, name, rows)
        else:  # a vector of parameters, or of statistics, is one row
            tensors[name] = of_its_own.fill(shape, kind, axes=tuple(range(len(shape))))
    return tensors
