"""softmax_backward: the VJP of softmax at a given output."""

from __future__ import annotations

from functools import partial

from verifier.ops import Op, softmax_rows
from verifier.ops.softmax import FORMS

TENSORS = ("grad_output", "output", "input")
"""The input is no argument of the backward pass: the output is made from it."""

OP = Op(
    name="softmax_backward",
    summary="grad_input of softmax at a given output",
    tensors=TENSORS,
    outputs=("grad_input",),
    variants=softmax_rows.VARIANTS,
    forms=FORMS,
    shapes=partial(softmax_rows.shapes, tensors=TENSORS),
    takes=softmax_rows.takes,
    canonical=softmax_rows.canonical,
    problem=partial(softmax_rows.given_problem, logarithm=False),
    exact=softmax_rows.exact,
    bounds=softmax_rows.bounds_with(logarithm=False, given=True),
    expected=softmax_rows.expected_backward,
    extents=softmax_rows.extents,
    links=softmax_rows.links,
    needs_variance=False,
    derived=("output",),
    complete=partial(softmax_rows.complete_backward, logarithm=False),
)
