"""log_softmax_backward: the VJP of log_softmax at a given output."""

from __future__ import annotations

from functools import partial

from verifier.ops import Op
from verifier.ops.log_softmax import FORMS
from verifier.ops.rows import any_dimension, results

TENSORS = ("grad_output", "output", "input")
"""The input is no argument of the backward pass: the output is made from it."""

OP = Op(
    name="log_softmax_backward",
    summary="grad_input of log_softmax at a given output",
    tensors=TENSORS,
    outputs=("grad_input",),
    variants=any_dimension.VARIANTS,
    forms=FORMS,
    shapes=partial(any_dimension.shapes, tensors=TENSORS),
    takes=any_dimension.takes,
    canonical=any_dimension.canonical,
    problem=partial(any_dimension.given_problem, logarithm=True),
    exact=any_dimension.exact,
    bounds=any_dimension.bounds,
    expected=results.expected_backward,
    extents=any_dimension.extents,
    links=any_dimension.links,
    needs_variance=False,
    derived=("output",),
    complete=partial(any_dimension.complete_backward, logarithm=True),
)
