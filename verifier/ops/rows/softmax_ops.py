"""The op of a softmax and of its backward pass, from what tells one softmax from another."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from verifier.arithmetic.abstract_number import Form
from verifier.ops import Op, special_values
from verifier.ops.rows import any_dimension, results

FORWARD = ("input",)
BACKWARD = ("grad_output", "output", "input")
"""The input is no argument of the backward pass: the output is made from it."""


def forward_op(*, name: str, summary: str, forms: Mapping[str, Form], logarithm: bool) -> Op:
    """Return the op of a softmax over one dimension; logarithm: whether the logarithm of it is the output."""
    return Op(
        name=name,
        theorems=("T11",),
        summary=summary,
        tensors=FORWARD,
        differentiable=FORWARD,
        variants=any_dimension.VARIANTS,
        forms=forms,
        shapes=partial(any_dimension.shapes, tensors=FORWARD),
        takes=any_dimension.takes,
        canonical=any_dimension.canonical,
        problem=partial(any_dimension.problem, logarithm=logarithm),
        exact=any_dimension.exact,
        bounds=any_dimension.bounds,
        expected=results.expected,
        extents=any_dimension.extents,
        links=any_dimension.links,
        needs_variance=False,
        special=special_values.exponentials,
        shift_invariant=True,
    )


def backward_op(*, name: str, summary: str, forms: Mapping[str, Form], logarithm: bool) -> Op:
    """Return the op of the VJP of such a softmax at a given output."""
    return Op(
        name=name,
        theorems=("T11",),
        summary=summary,
        tensors=BACKWARD,
        outputs=("grad_input",),
        variants=any_dimension.VARIANTS,
        forms=forms,
        shapes=partial(any_dimension.shapes, tensors=BACKWARD),
        takes=any_dimension.takes,
        canonical=any_dimension.canonical,
        problem=partial(any_dimension.given_problem, logarithm=logarithm),
        exact=any_dimension.exact,
        bounds=any_dimension.bounds,
        expected=results.expected_backward,
        extents=any_dimension.extents,
        links=any_dimension.links,
        needs_variance=False,
        derived=("output",),
        complete=partial(any_dimension.complete_backward, logarithm=logarithm),
    )
