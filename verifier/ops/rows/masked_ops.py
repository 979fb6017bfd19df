"""The op of a softmax over the elements of a row that a mask leaves, from what tells one from another.

The scores are input * scale + attn_bias: one rounded product and one rounded sum of numbers in memory. A form
of the plain softmax then computes with them, and its gradient is multiplied with the scale.
Source: docs/explanation/bounds.md, T16; torch.nn.functional.scaled_dot_product_attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from verifier.arithmetic.abstract_number import Form, Numbers, Terms, Value
from verifier.arithmetic.formats import FORMATS, INFLATION, Array
from verifier.bounds.affine import AffineNumbers
from verifier.bounds.affine_value import Affine
from verifier.ops import Bounded, Op, Setting, Solved
from verifier.ops.rows import any_dimension, masks, results
from verifier.ops.rows.compose_bounds import error_of_scalar
from verifier.oracle.enclosure import Mask
from verifier.oracle.problem import SoftmaxSolution
from verifier.oracle.softmax.problem import ADDED, SCALE, SoftmaxProblem
from verifier.oracle.softmax.solve import Masked, collect_softmax
from verifier.records.subject import Claim

BEYOND = 1000.0
"""Below the largest score by so much, a power is 0: exp(-745.2) is half of the smallest number of float64."""


def scores(k: Numbers, t: Terms, *, rounded: bool = False) -> Value:
    """Return input * scale + attn_bias; rounded: each operation to the input's dtype, as torch does it."""
    found = t.x
    if SCALE in t.further:
        found = found * t.further[SCALE]
        found = k.cast(found, "input") if rounded else found
    if ADDED in t.further:
        found = found + t.further[ADDED]
        found = k.cast(found, "input") if rounded else found
    return found


def masked(form: Form, *, rounded: bool = False) -> Form:
    """Return the form of a masked softmax that computes scores, and then as a form of the plain one."""

    def forward(k: Numbers, t: Terms) -> Value:
        return form.forward(k, replace(t, x=scores(k, t, rounded=rounded)))

    def backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
        found = form.backward(k, t)["grad_input"]
        if SCALE in t.further:
            found = (k.cast(found, "input") if rounded else found) * t.further[SCALE]
        return {"grad_input": found}

    return replace(form, name=_named(form.name, rounded=rounded), forward=forward, backward=backward)


def _named(name: str, *, rounded: bool) -> str:
    if not rounded:
        return name
    return "rounded_scores" if name == "canonical" else f"rounded_scores_{name}"


def masked_forms(forms: Mapping[str, Form]) -> dict[str, Form]:
    """Return the forms of a masked softmax: of each plain one's, with scores as computed or rounded."""
    every = [masked(form, rounded=rounded) for rounded in (False, True) for form in forms.values()]
    return {form.name: form for form in every}


def bounds(
    solved: Solved[SoftmaxProblem, SoftmaxSolution], claim: Claim, form: Form, setting: Setting
) -> Mapping[str, Bounded]:
    """Bound output and gradient by the affine interpreter (T16)."""
    case, posed = solved.case, solved.problem
    if case.rows == 0 or case.columns == 0:
        return {}
    operands = collect_softmax(posed)
    numbers = any_dimension.numbers_of(case, claim, setting)
    numbers.judged = operands.finite[:, None]
    numbers.absent = operands.absent if operands.absent.any() else None
    numbers.vanishing = _vanishing(posed, operands, numbers)
    found = {}
    with np.errstate(all="ignore"):
        terms = _terms(numbers, posed, operands, setting)
        output = form.forward(numbers, terms)
        known = ~operands.absent if posed.logarithm else np.ones_like(operands.absent)
        found["output"] = _bounded(numbers.cast(output, "output"), operands.finite, known)
        if operands.gradient is not None:
            numbers.row_tree = setting.trees.row_gradients
            gradient = numbers.read(operands.gradient, "grad_output")
            made = form.backward(numbers, replace(terms, output=output, grad_output=gradient))["grad_input"]
            sound = operands.finite_gradient
            found["grad_input"] = _bounded(numbers.cast(made, "input"), sound, np.ones_like(operands.absent))
    return found


def _vanishing(posed: SoftmaxProblem, operands: Masked, numbers: AffineNumbers) -> Mask | None:
    """Return which scores lie so far below the largest that no power of theirs is seen; None: no score does.

    An eighth of all that a score is made of is more than any form's roundings, in half precision too. A score
    may overflow downwards alone: neither its product nor the largest score comes near the largest number.
    """
    assert operands.x is not None
    added = 0.0 if operands.added is None else operands.added
    most = min(numbers.arithmetic.format.maximum, FORMATS[numbers.dtypes["input"]].maximum) / 4.0
    with np.errstate(all="ignore"):
        product = operands.x * posed.scale
        total, size = product + added, np.abs(product) + np.abs(added)
        top = np.where(operands.absent, -np.inf, total).argmax(axis=1)[:, None]
        largest, beside = (np.take_along_axis(a, top, axis=1) for a in (total, size))
        far = ~operands.absent & (largest - total >= BEYOND + (size + beside) / 8.0)
        far &= (np.abs(product) <= most) & (beside <= most)
    return far if far.any() else None


def _terms(numbers: AffineNumbers, posed: SoftmaxProblem, operands: Masked, setting: Setting) -> Terms:
    """Read the operands; what takes no part has the numbers of the row's largest score."""
    x, added = operands.x, operands.added
    assert x is not None
    total = x * posed.scale + (0.0 if added is None else added)
    top = np.where(operands.absent, -np.inf, total).argmax(axis=1)[:, None]

    def readable(values: Array) -> Array:
        return np.where(operands.absent, np.take_along_axis(values, top, axis=1), values)

    further: dict[str, Affine] = {}
    if posed.scale != 1.0:
        held = numbers.exact(np.full((1, 1), posed.scale))
        lost = abs(posed.scale) * error_of_scalar(posed.scale, setting) * INFLATION
        further[SCALE] = numbers.with_rest(held, np.full((1, 1), lost))
    if added is not None:
        further[ADDED] = numbers.read(readable(added), ADDED)
    return Terms(x=numbers.read(readable(x), "input"), further=further)


def _bounded(value: Affine, finite: Mask, known: Mask) -> Bounded:
    """Return the bound of a result: in rows that have an exact answer, of elements that have one."""
    whole = any_dimension.bounded(value, finite, "a row is fully masked, or not finite")
    return replace(whole, covered=whole.covered & known)


def masked_op(*, name: str, summary: str, forms: Mapping[str, Form], logarithm: bool, causal: bool) -> Op:
    """Return the op of a masked softmax; logarithm: of its logarithm; causal: below a diagonal alone."""
    return Op(
        name=name,
        theorems=("T11", "T16"),
        summary=summary,
        tensors=masks.TENSORS,
        optional=(masks.MASK, ADDED),
        differentiable=("input",),
        varied=(masks.MASK, ADDED),
        drawn={masks.MASK: masks.drawn_mask, ADDED: masks.drawn_addend},
        variants=masks.variants(causal=causal),
        forms=forms,
        shapes=partial(masks.shapes, causal=causal),
        takes=masks.takes,
        canonical=masks.canonical,
        problem=partial(masks.problem, causal=causal, logarithm=logarithm),
        exact=any_dimension.exact,
        bounds=bounds,
        expected=results.expected,
        extents=masks.extents,
        links=partial(masks.links, causal=causal),
        ordered=masks.ORDERED if causal else (),
        fullest=masks.FULLEST if causal else 0,
        diagonals=masks.DIAGONALS if causal else (),
        complete=partial(masks.complete, causal=causal, logarithm=logarithm),
        compared=partial(masks.compared, causal=causal),
        certain=partial(masks.certain, causal=causal, logarithm=logarithm),
        needs_variance=False,
        special=masks.special,
        shift_invariant=True,
    )
