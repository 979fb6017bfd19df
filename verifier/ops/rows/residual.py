"""Norms of input + residual that return the sum too: what they read, their forms and bounds.

The sum is one addition of given numbers, rounded to the accumulation format, and to the residual's dtype
where it is stored. Both are known exactly, and so are the rows that the norm reads: the theorems of its
variance hold for them as they are. A form settles which of the two sums the norm reads (`Form.keeps_sum`).
Source: docs/explanation/bounds.md, T14.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np
import torch

from verifier.arithmetic.abstract_number import Form, Numbers, Terms, Value
from verifier.arithmetic.formats import FORMATS, Array
from verifier.arithmetic.simulated import round_to
from verifier.ops import Bounded, Expected, Setting, Tensors
from verifier.ops.rows import trailing_dimensions
from verifier.ops.rows.compose_bounds import Composer, RowsSolved, case_array
from verifier.ops.rows.gates import first_sentence
from verifier.ops.rows.results import like
from verifier.oracle.enclosure import Enclosure
from verifier.oracle.rows.added import AddedRowProblem, AddedSolution
from verifier.oracle.rows.problem import RowProblem
from verifier.records.case import Case, Scalars
from verifier.records.subject import Claim, Subject

OUTPUTS = ("output", "new_residual")
INCOMING = {"output": "grad_output", "new_residual": "grad_new_residual"}
LIKE_THE_INPUT = ("residual", "new_residual", "grad_new_residual")
shapes = partial(trailing_dimensions.shapes, like=LIKE_THE_INPUT)
FLUSHED = "an addition of input and residual may flush a subnormal number to zero"
"""Why there is no bound on devices that flush: which number the norm reads is not known there."""
EAGER = frozenset({"autograd", "cast_before_weight", "torch_cpu", "torch_cpu_half"})
"""Forms whose gradient may be rounded to the residual's dtype before the other one is added, as autograd does
it, or after the addition, as in a fused kernel."""


@dataclass(frozen=True, kw_only=True)
class Sum:
    """What is rounded before the norm reads the sum.

    accumulated, stored: names of the formats of the addition, and of what is returned. kept: whether the norm
    reads the sum before it is stored.
    """

    accumulated: str
    stored: str
    kept: bool


UNROUNDED = Sum(accumulated="float64", stored="float64", kept=True)
"""What the sum is in float64: the exact one, or within 2**-53 of it."""


def reading(case: Case, form: Form, setting: Setting) -> Sum:
    """Return what a form reads."""
    held = case.dtype_of("residual")
    assert held is not None
    return Sum(accumulated=setting.arithmetic.format.name, stored=held, kept=form.keeps_sum)


def links(tensors: Tensors, scalars: Scalars) -> Mapping[str, list[tuple[str, int]]]:
    """Name the axes that shrink together."""
    return trailing_dimensions.links(tensors, scalars, like=LIKE_THE_INPUT)


def normalized(tensors: Tensors, _scalars: Scalars) -> torch.Tensor:
    """Return the sum as it is stored: infinite where the residual's dtype does not hold it."""
    x, residual = tensors["input"], tensors.get("residual")
    assert x is not None
    if residual is None:
        return x
    return (x.double() + residual.double()).to(residual.dtype)


def complete(tensors: Tensors, _scalars: Scalars, subject: Subject) -> dict[str, torch.Tensor | None]:
    """Leave out the gradient of a sum that the subject does not return."""
    absent = () if "new_residual" in subject.returns else ("grad_new_residual",)
    return {name: tensor for name, tensor in tensors.items() if name not in absent}


def problem(case: Case, *, centred: bool) -> AddedRowProblem:
    """Pose the op with its VJP to the oracle, at the sum as float64 holds it."""
    return posed(case, UNROUNDED, centred=centred)


def posed(case: Case, rounded: Hashable, *, centred: bool) -> AddedRowProblem:
    """Pose the op with its VJP to the oracle, at the sum that the norm reads. rounded: a `Sum`."""
    assert isinstance(rounded, Sum)
    norm = trailing_dimensions.problem(case, centred=centred)
    tensors = {name: case_array(case, name) for name in ("residual", "grad_new_residual")}
    whole = {n: None if a is None else np.reshape(a, (case.rows, case.columns)) for n, a in tensors.items()}
    first, second = np.asarray(norm.input), whole["residual"]
    assert second is not None
    total, stored = added_up(rounded, first, second)
    operands = {f.name: getattr(norm, f.name) for f in fields(RowProblem)}
    operands["input"] = total if rounded.kept else stored
    return AddedRowProblem(
        **operands, summands=(first, second), stored=stored, sum_gradient=whole["grad_new_residual"]
    )


def added_up(rounded: Sum, first: Array, second: Array) -> tuple[Array, Array]:
    """Return the sum in the accumulation format, and as it is stored."""
    with np.errstate(over="ignore", invalid="ignore"):
        # Two roundings of a sum of two numbers are one, if the first has twice the digits and two more
        # (Figueroa 1995): so it is from float64 to float32, and from float32 to either half format.
        total = round_to(FORMATS[rounded.accumulated], first + second)
        return total, round_to(FORMATS[rounded.stored], total)


def exact(solution: AddedSolution) -> Mapping[str, Enclosure]:
    """Name the exact results."""
    found = dict(trailing_dimensions.exact(solution))
    if "grad_input" in found:
        found["grad_residual"] = found["grad_input"]
    return {**found, "new_residual": solution.new_residual}


def expected(case: Case, _subject: Subject) -> Mapping[str, Expected]:
    """Return the shape and dtype of output, sum and gradients."""
    names = ("input", "residual", "weight", "bias")
    gradients = {f"grad_{name}": like(case.given[name]) for name in names if name in case.given}
    return {
        "output": like(case.given["input"]),
        "new_residual": like(case.given["residual"]),
        **gradients,
    }


def added(form: Form, *, keeps_sum: bool = False) -> Form:
    """Return the form of a norm of a sum, whose gradient has that of the returned sum added to it.

    The backward pass reads the sum as it is stored, and the statistics of the sum that was normalized.
    """
    eager = form.name in EAGER

    def backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
        read = replace(t, x=k.cast(t.x, "new_residual")) if keeps_sum else t
        found = dict(form.backward(k, read))
        total, sum_gradient = found["grad_input"], t.further.get("grad_new_residual")
        if sum_gradient is not None:
            ways = [total + sum_gradient]
            ways += [k.cast(total, "new_residual") + sum_gradient] if eager else []
            ways += among(sum_gradient, form.parts(k, read)) if form.parts is not None else []
            total = ways[0] if len(ways) == 1 else k.either(*ways)
        return {**found, "grad_input": total, "grad_residual": total}

    def forward(k: Numbers, t: Terms) -> Value:
        return form.forward(k, t)

    which = "before it is rounded" if keeps_sum else "as it is stored"
    forward.__doc__ = f"{first_sentence(form.forward)}, x being the sum {which}."
    backward.__doc__ = f"{first_sentence(form.backward)}, and the gradient of the sum."
    name = _named(form.name, keeps_sum=keeps_sum)
    return replace(form, name=name, forward=forward, backward=backward, keeps_sum=keeps_sum)


def among(gradient: Value, parts: Iterable[tuple[Value, ...]]) -> Iterator[Value]:
    """Yield sums of the parts in each way, to which a gradient is added first, or between two of them.

    Autograd begins with the gradient that it is given of what it is asked about.
    """
    for summands in parts:
        for place in range(len(summands)):
            yield functools.reduce(operator.add, [*summands[:place], gradient, *summands[place:]])


def _named(name: str, *, keeps_sum: bool) -> str:
    if not keeps_sum:
        return name
    return "kept_sum" if name == "canonical" else f"kept_sum_{name}"


def added_forms(forms: Mapping[str, Form]) -> dict[str, Form]:
    """Return the forms of a norm of a sum: of each of the norm's, with the sum as stored, and as kept."""
    every = [added(form, keeps_sum=kept) for kept in (False, True) for form in forms.values()]
    return {form.name: form for form in every}


class AddedComposer(Composer):
    """Runs a form of a norm of a sum on one case."""

    problem: AddedRowProblem

    def __init__(self, solved: RowsSolved, claim: Claim, form: Form, setting: Setting) -> None:
        """Say what is not known where sums are flushed."""
        super().__init__(solved, claim, form, setting)
        self.dtypes["new_residual"] = self.dtypes["residual"]
        if setting.arithmetic.flush_to_zero:
            held = (*self.problem.summands, np.asarray(self.problem.input))
            small = setting.arithmetic.format.smallest_normal
            tiny = np.logical_or.reduce([(np.abs(part) < small) & (part != 0) for part in held])
            self._restrict(~tiny.any(axis=1), FLUSHED)

    def own(self) -> Mapping[str, Bounded]:
        """Bound what the norm computes; the stored sum is known, unless it was flushed."""
        stored = np.isfinite(self.problem.stored)
        # Either summand may be flushed as it is read, and so may the sum.
        flushed = np.full(stored.shape, 3.0 * self.setting.arithmetic.addition_omega)
        return {**super().own(), "new_residual": Bounded(bound=flushed, covered=stored, reasons=())}

    def _terms(self) -> Terms:
        terms, sum_gradient = super()._terms(), self.problem.sum_gradient
        if sum_gradient is None:
            return terms
        return replace(
            terms, further={"grad_new_residual": self.numbers.read(sum_gradient, "grad_new_residual")}
        )


def bounds(solved: RowsSolved, claim: Claim, form: Form, setting: Setting) -> Mapping[str, Bounded]:
    """Bound every output and gradient; see `rows_bounds`."""
    return AddedComposer(solved, claim, form, setting).own()
