"""Mathematical norms, one file each: arguments, exact meaning, ways to write them and their bounds.

A module of this folder is an op when it defines `OP`, an `Op`. Being in the folder is the registration.
Terms are seen in *canonical rows*: (rows, columns) arrays whose rows the statistics are taken over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from strategies.registry import registry
from strategies.values import Values
from verifier.arithmetic.abstract_number import Form
from verifier.arithmetic.formats import Arithmetic, Array
from verifier.ops.special_values import Expectation, Mask, Rule, elementwise
from verifier.oracle.enclosure import Enclosure
from verifier.oracle.problem import Problem, Solution
from verifier.records.case import Case, Extents, Scalars
from verifier.records.planned_launches import ShapePoint
from verifier.records.subject import Claim, Subject, Trees


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """Shapes of an op's tensors, and its scalars but eps, for one choice of extents."""

    tensors: Mapping[str, tuple[int, ...]]
    scalars: Scalars = field(default_factory=dict)


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


Posed_co = TypeVar("Posed_co", covariant=True)
Answer_co = TypeVar("Answer_co", bound=Solution | None, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Solved(Generic[Posed_co, Answer_co]):
    """A case, the problem that it poses to the oracle, and the oracle's answer.

    Both are of the op's own kind (None where the exact meaning is the subject's specification).
    """

    case: Case
    problem: Posed_co
    solution: Answer_co

    def decides(self, name: str) -> bool:
        """Whether the oracle itself can decide on a result; what an op makes of its answer, it cannot."""
        return self.solution is not None and name in self.solution.enclosures


Tensors = Mapping[str, torch.Tensor | None]
Index = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def _input_alone(tensors: Tensors, _scalars: Scalars) -> torch.Tensor:
    x = tensors["input"]
    assert x is not None
    return x


def _rounds_nothing(_case: Case, _form: Form, _setting: Setting) -> None:
    return None


def _as_they_are(tensors: Tensors, _scalars: Scalars, _subject: Subject) -> dict[str, torch.Tensor | None]:
    return dict(tensors)


def rows_and_columns(first: int, second: int) -> Iterator[ShapePoint]:
    """Yield the shape of so many rows and columns."""
    yield first, second, 0


def _any_shapes(_subject: Subject, _shapes: Shapes) -> bool:
    return True


def _nothing_told(_subject: Subject, _seed: int) -> Scalars:
    return {}


def _nothing_further(_case: Case, _solution: object) -> Mapping[str, Enclosure]:
    return {}


def _nothing_left_out(case: Case, _name: str) -> Mask:
    return np.zeros((case.rows, case.columns), dtype=np.bool_)


def _nothing_undefined(_case: Case) -> frozenset[str]:
    return frozenset()


def _nothing_certain(_case: Case, _claim: Claim) -> Iterator[tuple[str, Expectation]]:
    return iter(())


@dataclass(frozen=True, kw_only=True)
class Op:
    """One mathematical norm.

    `tensors` names the tensor arguments in order, `optional` those that may be absent,
    `differentiable` those that have gradients (empty for a raw backward op), `outputs` what it returns.
    `shapes(rows, columns, variant)` lays out the extents (None: this variant does not exist for them).
    `canonical(extents, name, array)` brings an argument, output or gradient into canonical rows.
    `problem(case)` poses the case to the oracle (None: it is not asked); `exact(solution)` names
    the exact results, `further(case, solution)` those that need numbers of the case (running statistics).
    `reading(case, form, setting)` says what a form rounds before the norm reads it (a sum that is stored in
    the residual's dtype), None where nothing is; `posed(case, reading)` poses the case with it. Such are
    roundings of single operations on arguments, so that what is read is known exactly; `problem` poses it
    as float64 holds it. `normalized(tensors, scalars)` is what the norm reads, in the input's shape and
    layout.
    `incoming` names for each differentiable output the tensor that is its gradient; `alike` names tensors
    that carry the finite hazards of the input.
    `bounds(solved, claim, form, setting)` proves a bound for every output and gradient.
    `extents(tensors, scalars)` reads (rows, columns, scalars) off tensors whose shapes were reduced;
    `links` names the axes that shrink together.
    `at_integers(a, b)` yields (rows, columns, variant) of shapes in which two integers, which a kernel's
    source may compare with, are two extents at once: rows and columns, or groups and channels.
    `told(subject, seed)` returns scalars of a case that no shape decides; seed: of its input's values.
    `takes(subject, shapes)` says whether the subject's signature has room for the shapes and scalars.
    `needs_variance` says whether bounds rest on a variance algorithm (softmax's do not), and `needs_mean`
    whether on one that computes a mean, too (an RMS norm's do not); `reads_eps` that there is an eps without
    a variance.
    `special(scalars, x)` yields what is expected of NaN and infinities in a row (`ops/special_values.py`);
    `shift_invariant`, `scale_invariant`: a constant added to the input, or a factor of it (eps going by its
    square), changes no output.
    `undefined(case)` names the results that no exact value exists for (0 / 0) although the inputs are finite:
    a kernel refuses such a case, or leaves something finite there.
    `certain(case, claim)` yields, by result, what elements are that no rounding touches and that may be no
    numbers: zeros of what is masked out, what a fully masked row is declared to give.
    `compared(case)` is what tells which element of a row is the largest, in the input's shape and layout, and
    what `special` is told of (None: what is normalized); -inf takes no part.
    `left_out(case, name)` says which elements of a result, in canonical rows, no input reaches, where an op
    compares nothing (the gradient of what dropout leaves out).
    `drawn` makes tensors that are no ordinary numbers, of a recipe's values, a shape and the input's dtype.
    `ordered` names links along which places have an order, so that none is exchanged for another.
    `fullest` is the variant of which most elements take part, where a mask comes with the shape; `diagonals`
    are shapes whose diagonal goes through several tiles: where a loop ends follows from the row there.
    `derived` names tensors that `complete` makes from the others (the statistics of a raw backward op).
    `own` says that the exact meaning is the subject's `specification`; `parameters` are the tensors of one
    row, alike for all rows; `wholes` are parameters each of whose numbers acts on all elements (a learned
    scale), so that its gradient is a sum of all; `varied` names tensors, besides input, weight, bias and
    grad_output, whose values and presence the search varies as it does those of weight; `scales` says of such
    a tensor by which powers of two the fixed list multiplies its numbers, in one case after the other.
    `theorems` are those of docs/explanation/bounds.md that results rest on besides the theorems of statistics
    (T1 to T9) and of operations one by one (T10).
    `default_eps(dtype)` is what an eps of None means, None where that is not settled; `default_eps` itself is
    None where the op has no such eps.
    """

    name: str
    summary: str
    tensors: tuple[str, ...]
    optional: tuple[str, ...] = ()
    differentiable: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ("output",)
    incoming: Mapping[str, str] = field(default_factory=lambda: {"output": "grad_output"})
    alike: tuple[str, ...] = ()
    normalized: Callable[[Tensors, Scalars], torch.Tensor] = _input_alone
    variants: int = 1
    forms: Mapping[str, Form]
    shapes: Callable[[int, int, int], Shapes | None]
    canonical: Callable[[Extents, str, Array], Array]
    problem: Callable[[Case], Problem[Solution] | None]
    posed: Callable[[Case, Hashable], Problem[Solution]] | None = None
    reading: Callable[[Case, Form, Setting], Hashable | None] = _rounds_nothing
    exact: Callable[[Any], Mapping[str, Enclosure]]
    bounds: Callable[[Solved[Any, Any], Claim, Form, Setting], Mapping[str, Bounded]]
    expected: Callable[[Case, Subject], Mapping[str, Expected]]
    extents: Callable[[Tensors, Scalars], tuple[int, int, Scalars]]
    links: Callable[[Tensors, Scalars], Mapping[str, list[tuple[str, int]]]]
    at_integers: Callable[[int, int], Iterator[ShapePoint]] = rows_and_columns
    takes: Callable[[Subject, Shapes], bool] = _any_shapes
    told: Callable[[Subject, int], Scalars] = _nothing_told
    further: Callable[[Case, Any], Mapping[str, Enclosure]] = _nothing_further
    undefined: Callable[[Case], frozenset[str]] = _nothing_undefined
    certain: Callable[[Case, Claim], Iterator[tuple[str, Expectation]]] = _nothing_certain
    compared: Callable[[Case], torch.Tensor] | None = None
    left_out: Callable[[Case, str], Mask] = _nothing_left_out
    drawn: Mapping[str, Callable[[Values, tuple[int, ...], str], torch.Tensor]] = field(default_factory=dict)
    ordered: tuple[str, ...] = ()
    fullest: int = 0
    diagonals: tuple[ShapePoint, ...] = ()
    derived: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ("weight", "bias")
    wholes: tuple[str, ...] = ()
    default_eps: Callable[[str], float | None] | None = None
    varied: tuple[str, ...] = ()
    scales: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    own: bool = False
    theorems: tuple[str, ...] = ()
    needs_variance: bool = True
    needs_mean: bool = True
    reads_eps: bool = False
    special: Rule = elementwise
    shift_invariant: bool = False
    scale_invariant: bool = False
    complete: Callable[[Tensors, Scalars, Subject], dict[str, torch.Tensor | None]] = _as_they_are

    @property
    def of_the_sum(self) -> tuple[str, ...]:
        """The tensors of one dtype with what is added to the input: that, and the gradient of the sum."""
        incoming = (gradient for output, gradient in self.incoming.items() if output != "output")
        return (*self.alike, *incoming) if self.alike else ()

    @property
    def has_eps(self) -> bool:
        """Whether eps makes a difference: a softmax has none, and a backward pass may have it in rstd."""
        return self.needs_variance or self.own or self.reads_eps or "rstd" in self.tensors

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

    def sums_rows(self, result: str) -> bool:
        """Return whether a result is a gradient that adds up rows: that of a parameter."""
        role = result.removeprefix("grad_")
        return role != result and role in {*self.parameters, *self.wholes}

    def sums_all(self, result: str) -> bool:
        """Return whether each number of a result adds up all elements."""
        role = result.removeprefix("grad_")
        return role != result and role in self.wholes

    def reads(self, case: Case) -> torch.Tensor:
        """Return what the norm reads of a case, in the input's shape: -inf where an element takes no part."""
        return self.normalized(case.tensors, case.scalars) if self.compared is None else self.compared(case)

    def untouched(self, case: Case, name: str = "output") -> Mask:
        """Return the elements of a result that no input reaches, in canonical rows.

        Where scores are compared, those of output and gradient are the same.
        """
        if self.compared is None:
            return self.left_out(case, name)
        read = self.canonical(case, "input", self.compared(case).numpy())
        return np.asarray(np.isneginf(read))

    def unordered(self, case: Case) -> dict[str, list[tuple[str, int]]]:
        """Return the links of a case along which places may be left out or exchanged one for another."""
        every = self.links(case.tensors, case.scalars).items()
        return {name: axes for name, axes in every if name not in self.ordered}

    def flat_index(self, extents: Extents, name: str, shape: tuple[int, ...]) -> Index:
        """Return the flat index in a tensor of each element of its canonical rows.

        name: an argument, output or gradient. shape: that of the tensor, of fewer than 2**53 elements.
        """
        numbers = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
        return self.canonical(extents, name, numbers).astype(np.int64)


def from_rows(op: Op, extents: Extents, name: str, rows: torch.Tensor) -> torch.Tensor:
    """Return the tensor of the input's shape whose canonical rows are given."""
    shape = extents.input_shape
    flat = torch.empty(math.prod(shape), dtype=rows.dtype)
    flat[torch.from_numpy(op.flat_index(extents, name, shape).reshape(-1))] = rows.reshape(-1)
    return flat.reshape(shape)


@cache
def ops() -> dict[str, Op]:
    """Return all ops by name."""
    return {name: module.OP for name, module in registry(__name__, "OP").items()}


def op(name: str) -> Op:
    """Return the op of that name.

    Raises:
        ValueError: there is none.

    """
    known = ops()
    if name not in known:
        raise ValueError(f"no op {name!r}; there are: {', '.join(known)}")
    return known[name]
