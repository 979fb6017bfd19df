"""Norms of residual + dropout(input), the mask given: what they read, their forms and bounds.

dropout(input) is input / (1 - p) where the boolean mask is True, and 0 elsewhere, as
torch.nn.functional.dropout has it. Where 1 / (1 - p) is a power of two no product is rounded, however a
kernel computes it: the sum is known exactly, as that of two given numbers is, and all that holds of norms of
a sum holds. With any other p the sum depends on how the scale was rounded and whether the product is fused:
it is computed, see `verifier.ops.rows.dropout_by_formula`.
Source: Srivastava et al. 2014, in the inverted form; docs/explanation/bounds.md, T14.
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from strategies.values import Values
from verifier.arithmetic.abstract_number import Form, Numbers, Terms, Value
from verifier.arithmetic.formats import FORMATS
from verifier.arithmetic.simulated import round_to
from verifier.ops import Bounded, Setting, Shapes, Tensors
from verifier.ops.rows import dropout_by_formula, formula, residual, trailing_dimensions
from verifier.ops.rows.compose_bounds import RowsSolved, case_array
from verifier.ops.rows.dropout_by_formula import AnyProbability, AnyProbabilityComposer
from verifier.ops.rows.gates import first_sentence
from verifier.ops.rows.residual import EAGER, UNROUNDED, AddedComposer, Sum
from verifier.oracle.enclosure import Enclosure, Mask
from verifier.oracle.formulas.problem import FormulaSolution
from verifier.oracle.rows.added import AddedRowProblem
from verifier.oracle.rows.dropped import FACTOR, KEPT, DroppedRowProblem, DroppedSolution
from verifier.records.case import Case, Scalars
from verifier.records.subject import Claim, Subject

PROBABILITIES = (0.5, 0.1, 0.75, 0.3, 0.0, 0.9)
"""Of an element to be dropped, by the seed of the case; every seventh has one of its own."""
USUAL = 0.5
"""That of a kernel that is told none."""
LARGEST_EXACT = 2.0**8
"""Of the scales that are powers of two: bfloat16 has eight digits for p."""
_LIKE = (*residual.LIKE_THE_INPUT, KEPT)


def shapes(rows: int, columns: int, variant: int, *, tensors: tuple[str, ...]) -> Shapes | None:
    """Lay out rows and columns as norms over trailing dimensions take them."""
    found = trailing_dimensions.shapes(rows, columns, variant, tensors=tensors, like=_LIKE)
    return None if found is None else replace(found, scalars={**found.scalars, "p": USUAL})


def told(subject: Subject, seed: int) -> Scalars:
    """Return the p of a case: a kernel without one has its own, 1/2."""
    if "p" not in subject.signature:
        return {}
    turn = seed % (len(PROBABILITIES) + 1)
    drawn = round(random.Random(seed).uniform(0.01, 0.99), 3)  # noqa: S311 (nothing is a secret here)
    return {"p": PROBABILITIES[turn] if turn < len(PROBABILITIES) else drawn}


def links(tensors: Tensors, scalars: Scalars) -> Mapping[str, list[tuple[str, int]]]:
    """Name the axes that shrink together."""
    return trailing_dimensions.links(tensors, scalars, like=_LIKE)


def scale_of(scalars: Scalars) -> float:
    """Return what is multiplied into the elements that are kept."""
    p = float(scalars["p"])
    return math.inf if p == 1.0 else 1.0 / (1.0 - p)


def rounds_nothing(scalars: Scalars) -> bool:
    """Return whether every format holds p, 1 - p and 1 / (1 - p), a power of two, as they are."""
    scale = scale_of(scalars)
    return math.frexp(scale)[0] == 0.5 and scale <= LARGEST_EXACT and float(scalars["p"]) == 1.0 - 1.0 / scale


def normalized(tensors: Tensors, scalars: Scalars) -> torch.Tensor:
    """Return the sum as it is stored: infinite where the residual's dtype does not hold it."""
    x, other, kept = tensors["input"], tensors.get("residual"), tensors.get(KEPT)
    assert x is not None
    if other is None or kept is None:
        return x
    dropped = torch.where(kept != 0, x.double() * scale_of(scalars), 0.0)
    return (dropped + other.double()).to(other.dtype)


def drawn_mask(values: Values, shape: tuple[int, ...], _dtype: str) -> torch.Tensor:
    """Make a boolean mask of a recipe: some rows are kept whole, some dropped whole, of the others half."""
    random = np.random.default_rng(values.seed)
    rows, columns = math.prod(shape[:-1]), shape[-1] if shape else 1
    share = random.choice([0.0, 0.5, 0.5, 0.5, 1.0], (rows, 1))
    return torch.from_numpy((random.random((rows, columns)) < share).reshape(shape))


def complete(tensors: Tensors, scalars: Scalars, subject: Subject) -> dict[str, torch.Tensor | None]:
    """Leave out the gradient of a sum that is not returned, and NaN and infinities that are dropped.

    A kernel may multiply with 0, or choose: what it makes of these is not settled.
    """
    found = residual.complete(tensors, scalars, subject)
    x, kept = found["input"], found.get(KEPT)
    if x is not None and kept is not None:
        lost = ~x.isfinite() & (kept == 0)
        found["input"] = torch.where(lost, torch.zeros_like(x), x) if lost.any() else x
    return found


def problem(case: Case, *, norm: Mapping[str, Form], centred: bool) -> DroppedRowProblem | AnyProbability:
    """Pose the op with its VJP to the oracle, at the sum as float64 holds it. norm: the forms of the norm."""
    return posed(case, UNROUNDED, norm=norm, centred=centred)


@dataclass(frozen=True, kw_only=True)
class DroppedSum(Sum):
    """What is rounded before the norm reads the sum.

    divides: quotients are approximate, so that even one that a format holds may be off.
    """

    divides: bool


def reading(case: Case, form: Form, setting: Setting) -> DroppedSum:
    """Return what a form reads: a division that is approximate makes no power of two of 1 / (1 - p)."""
    read, arithmetic = residual.reading(case, form, setting), setting.arithmetic
    parts = {f.name: getattr(read, f.name) for f in fields(Sum)}
    return DroppedSum(**parts, divides=max(arithmetic.division, arithmetic.reciprocal) > 1.0)


def posed(
    case: Case, rounded: Hashable, *, norm: Mapping[str, Form], centred: bool
) -> DroppedRowProblem | AnyProbability:
    """Pose the op with its VJP to the oracle, at the sum that the norm reads. rounded: a `Sum`.

    Where the scale is rounded no sum is known, and the exact one is posed. norm: the forms of the norm.
    """
    assert isinstance(rounded, Sum)
    kept = case_array(case, KEPT)
    assert kept is not None
    kept, scale = np.reshape(kept, (case.rows, case.columns)), scale_of(case.scalars)
    plain = residual.posed(case, rounded, centred=centred)
    divides = isinstance(rounded, DroppedSum) and rounded.divides
    if divides or not rounds_nothing(case.scalars):
        canonical = dropout_by_formula.computed(residual.added(norm["canonical"]), centred=centred)
        return dropout_by_formula.problem(plain, canonical, float(case.scalars["p"]), scale, kept)
    first, second = plain.summands
    with np.errstate(over="ignore", invalid="ignore"):
        dropped = round_to(FORMATS[rounded.accumulated], np.where(kept != 0, first * scale, 0.0))
    total, stored = residual.added_up(rounded, dropped, second)
    operands = {f.name: getattr(plain, f.name) for f in fields(AddedRowProblem)}
    operands |= {"input": total if rounded.kept else stored, "stored": stored}
    return DroppedRowProblem(**operands, kept=kept, scale=scale)


def left_out(case: Case, name: str) -> Mask:
    """Return which elements of a result no input reaches: of the input's gradient, what is dropped."""
    kept = case_array(case, KEPT)
    assert kept is not None
    dropped_here = np.reshape(kept, (case.rows, case.columns)) == 0
    return dropped_here if name == "grad_input" else np.zeros_like(dropped_here)


def exact(solution: DroppedSolution | FormulaSolution) -> Mapping[str, Enclosure]:
    """Name the exact results."""
    if isinstance(solution, FormulaSolution):
        return formula.exact(solution)
    found = {**trailing_dimensions.exact(solution), "new_residual": solution.new_residual}
    return found if solution.grad_residual is None else {**found, "grad_residual": solution.grad_residual}


def _is_eager(form: Form) -> bool:
    return form.name.removeprefix("kept_sum_") in EAGER


def dropped(form: Form) -> Form:
    """Return a form of a norm of a sum whose input was masked and scaled: its gradient is so, too."""
    eager = _is_eager(form)

    def backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
        found, factor = form.backward(k, t), t.further[FACTOR]
        total = found["grad_residual"]
        own = total * factor
        first = ("new_residual", "input")  # autograd rounds to the input's dtype before it multiplies
        own = k.either(own, *(k.cast(total, name) * factor for name in first)) if eager else own
        return {**found, "grad_input": own}

    backward.__doc__ = f"{first_sentence(form.backward)}; the input's times what multiplies the input."
    return replace(form, backward=backward)


def dropped_forms(forms: Mapping[str, Form]) -> dict[str, Form]:
    """Return the forms of a norm of a sum, with a mask over the input."""
    return {name: dropped(form) for name, form in residual.added_forms(forms).items()}


class DroppedComposer(AddedComposer):
    """Runs a form of a norm of residual + dropout(input) on one case."""

    problem: DroppedRowProblem

    def __init__(self, solved: RowsSolved, claim: Claim, form: Form, setting: Setting) -> None:
        """Say what is not known where autograd's forward pass scales the input in a format too small."""
        super().__init__(solved, claim, form, setting)
        self.scaled: Mask = np.ones(len(self.covered), dtype=bool)
        if _is_eager(form):
            with np.errstate(over="ignore", invalid="ignore"):
                scaled = np.where(self.problem.kept != 0, self.problem.summands[0] * self.problem.scale, 0.0)
                held = np.isfinite(round_to(FORMATS[self.dtypes["input"]], scaled))
            lost = ~held & np.isfinite(self.problem.summands[0])
            self.scaled = np.logical_not(lost.any(axis=1))
            self._restrict(self.scaled, "an input that is scaled in its own dtype may overflow")

    def own(self) -> Mapping[str, Bounded]:
        """Bound what the norm computes; the stored sum is known, unless it was flushed."""
        found = dict(super().own())
        held = found["new_residual"]
        # A number that is flushed as it is read is as much times the scale.
        grown = held.bound * max(self.problem.scale, 1.0)
        covered = held.covered & self.scaled[:, None]
        return {**found, "new_residual": replace(held, bound=grown, covered=covered)}

    def _terms(self) -> Terms:
        terms = super()._terms()
        return replace(terms, further={**terms.further, FACTOR: self.numbers.exact(self.problem.factor)})


def bounds(
    solved: RowsSolved, claim: Claim, form: Form, setting: Setting, *, norm: Mapping[str, Form]
) -> Mapping[str, Bounded]:
    """Bound every output and gradient; see `rows_bounds`. norm: the forms of the norm."""
    if isinstance(solved.problem, AnyProbability):
        of_sum = residual.added_forms(norm)[form.name]
        canonical = residual.added(norm["canonical"], keeps_sum=form.keeps_sum)
        return AnyProbabilityComposer(solved, claim, of_sum, setting, canonical=canonical).own()
    return DroppedComposer(solved, claim, form, setting).own()
