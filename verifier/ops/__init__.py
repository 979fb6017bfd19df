"""Mathematical norms, one file each: arguments, exact meaning, ways to write them and their bounds.

A module of this folder is an op when it defines `OP`, an `Op`. Being in the folder is the registration.
Terms are seen in *canonical rows*: (rows, columns) arrays whose rows the statistics are taken over.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from verifier.arithmetic import Arithmetic, Array
from verifier.case import Case
from verifier.numbers import Form
from verifier.ops.special import Rule, elementwise
from verifier.subjects import Claim, Subject, Trees


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """Shapes of an op's tensors, and its scalars but eps, for one choice of extents."""

    tensors: Mapping[str, tuple[int, ...]]
    scalars: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Shape and dtype that an output must have."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the place of execution contributes to a bound.

    `scalar_format` is the format in which floating-point arguments such as eps reach the kernel
    (None: the accumulation format), `trees` those in force there.
    """

    arithmetic: Arithmetic
    trees: Trees
    scalar_format: str | None = None

    def with_format(self, name: str) -> Setting:
        """Return the same operations in another accumulation format."""
        return replace(self, arithmetic=self.arithmetic.in_format(name))


@dataclass(frozen=True, kw_only=True)
class Bounded:
    """A proved bound on |computed - exact| of one output in canonical rows.

    `covered` says for which elements there is a theorem; `reasons` are the hypotheses that fail elsewhere.
    """

    bound: Array
    covered: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    reasons: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """The reasons in one sentence."""
        return "; ".join(self.reasons)


Tensors = Mapping[str, torch.Tensor | None]


def _as_they_are(
    tensors: Tensors, scalars: Mapping[str, Any], subject: Subject
) -> dict[str, torch.Tensor | None]:
    del scalars, subject
    return dict(tensors)


def _any_shapes(subject: Subject, shapes: Shapes) -> bool:
    del subject, shapes
    return True


def _nothing_further(case: Case, solution: Any) -> Mapping[str, Any]:
    del case, solution
    return {}


def _nothing_undefined(case: Case) -> frozenset[str]:
    del case
    return frozenset()


@dataclass(frozen=True, kw_only=True)
class Op:
    """One mathematical norm.

    `tensors` names the tensor arguments in order, `optional` those that may be absent,
    `differentiable` those that have gradients (empty for a raw backward op), `outputs` what it returns.
    `shapes(rows, columns, variant)` lays out the extents (None: this variant does not exist for them).
    `canonical(case, name, array)` brings an argument, output or gradient into canonical rows.
    `problem(case)` poses the case to the oracle (a RowProblem or a SoftmaxProblem); `exact(solution)` names
    the exact results, `further(case, solution)` those that need numbers of the case (running statistics).
    `bounds(case, claim, form, setting, solution)` proves a bound for every output and gradient.
    `extents(tensors, scalars)` reads (rows, columns, scalars) off tensors whose shapes were reduced;
    `links` names the axes that shrink together.
    `takes(subject, shapes)` says whether the subject's signature has room for the shapes and scalars.
    `needs_variance` says whether bounds rest on a variance algorithm (softmax's do not).
    `special(scalars, x)` yields what is expected of NaN and infinities in a row (see `ops/special.py`);
    `shift_invariant`, `scale_invariant`: a constant added to the input, or a factor of it (eps going by its
    square), changes no output.
    `undefined(case)` names the results that no exact value exists for (0 / 0) although the inputs are finite:
    a kernel refuses such a case, or leaves something finite there.
    `derived` names tensors that `complete` makes from the others (the statistics of a raw backward op).
    `own` says that the exact meaning is the subject's `specification`, `inapplicable` which checks need more
    than the op can say, and why; `parameters` are the tensors of one row, alike for all rows.
    """

    name: str
    summary: str
    tensors: tuple[str, ...]
    optional: tuple[str, ...] = ()
    differentiable: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ("output",)
    variants: int = 1
    forms: Mapping[str, Form]
    shapes: Callable[[int, int, int], Shapes | None]
    canonical: Callable[[Case, str, Array], Array]
    problem: Callable[[Case], Any]
    exact: Callable[[Any], Mapping[str, Any]]
    bounds: Callable[[Case, Claim, Form, Setting, Any], Mapping[str, Bounded]]
    expected: Callable[[Case, Subject], Mapping[str, Expected]]
    extents: Callable[[Tensors, Mapping[str, Any]], tuple[int, int, Mapping[str, Any]]]
    links: Callable[[Tensors, Mapping[str, Any]], Mapping[str, list[tuple[str, int]]]]
    takes: Callable[[Subject, Shapes], bool] = _any_shapes
    further: Callable[[Case, Any], Mapping[str, Any]] = _nothing_further
    undefined: Callable[[Case], frozenset[str]] = _nothing_undefined
    derived: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ("weight", "bias")
    own: bool = False
    inapplicable: Mapping[str, str] = field(default_factory=dict)
    needs_variance: bool = True
    special: Rule = elementwise
    shift_invariant: bool = False
    scale_invariant: bool = False
    complete: Callable[[Tensors, Mapping[str, Any], Subject], dict[str, torch.Tensor | None]] = _as_they_are

    def claimed(self, claim: Claim) -> bool:
        """Return whether a claim names what bounds rest on: an algorithm, or a form where none is needed."""
        return claim.variance is not None or (not self.needs_variance and claim.formula is not None)

    def form(self, claim: Claim, dtype: str) -> Form:
        """Return the form that a claim names for a dtype; the op's canonical one if it names none.

        Raises:
            ValueError: the op has no form of that name.

        """
        named = claim.formula.get(dtype) if isinstance(claim.formula, Mapping) else claim.formula
        if named is None:
            return next(iter(self.forms.values()))
        if isinstance(named, Form):
            return named
        if named not in self.forms:
            raise ValueError(f"{self.name} has no form {named!r}; there are: {', '.join(self.forms)}")
        return self.forms[named]


def places(op: Op, case: Case, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return where the elements of a tensor's canonical rows lie in the tensor: flat indices."""
    numbers = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
    return op.canonical(case, name, numbers).astype(np.int64)


def from_rows(op: Op, case: Case, name: str, rows: torch.Tensor) -> torch.Tensor:
    """Return the tensor of the input's shape whose canonical rows are given."""
    shape = tuple(case.given["input"].shape)
    flat = torch.empty(math.prod(shape), dtype=rows.dtype)
    flat[torch.from_numpy(places(op, case, name, shape).reshape(-1))] = rows.reshape(-1)
    return flat.reshape(shape)


@cache
def ops() -> dict[str, Op]:
    """Return all ops by name."""
    found = (importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__))
    named = {module.OP.name: module.OP for module in found if hasattr(module, "OP")}
    return dict(sorted(named.items()))


def op(name: str) -> Op:
    """Return the op of that name.

    Raises:
        ValueError: there is none.

    """
    known = ops()
    if name not in known:
        raise ValueError(f"no op {name!r}; there are: {', '.join(known)}")
    return known[name]
