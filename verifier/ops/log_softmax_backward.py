"""log_softmax_backward: the VJP of log_softmax at a given output."""

from __future__ import annotations

from functools import partial

from verifier.ops import Op, softmax_rows
from verifier.ops.log_softmax import FORMS

TENSORS = ("grad_output", "output", "input")
"""The input is no argument of the backward pass: the output is made from it."""

OP = Op(
    name="log_softmax_backward",
    summary="grad_input of log_softmax at a given output",
    tensors=TENSORS,
    outputs=("grad_input",),
    variants=softmax_rows.VARIANTS,
    forms=FORMS,
    shapes=partial(softmax_rows.shapes, tensors=TENSORS),
    takes=softmax_rows.takes,
    canonical=softmax_rows.canonical,
    problem=partial(softmax_rows.given_problem, logarithm=True),
    exact=softmax_rows.exact,
    bounds=softmax_rows.bounds_with(logarithm=True, given=True),
    expected=softmax_rows.expected_backward,
    extents=softmax_rows.extents,
    links=softmax_rows.links,
    needs_variance=False,
    derived=("output",),
    complete=partial(softmax_rows.complete_backward, logarithm=True),
)
