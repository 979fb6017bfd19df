"""batch_norm_backward: the VJP of batch_norm in training at given mean and rstd."""

from __future__ import annotations

from functools import partial

from verifier.ops import Op, batch_norm_rows, trailing
from verifier.ops.batch_norm import FORMS

TENSORS = ("grad_output", "input", "weight", "mean", "rstd")

OP = Op(
    name="batch_norm_backward",
    summary="grad_input, grad_weight, grad_bias of batch_norm in training at given mean and rstd",
    tensors=TENSORS,
    optional=("weight",),
    outputs=("grad_input", "grad_weight", "grad_bias"),
    variants=3,
    forms=FORMS,
    shapes=partial(batch_norm_rows.shapes, tensors=TENSORS),
    canonical=batch_norm_rows.canonical,
    problem=batch_norm_rows.given_problem,
    exact=trailing.exact,
    bounds=batch_norm_rows.given_bounds,
    expected=batch_norm_rows.expected_backward,
    extents=batch_norm_rows.extents,
    links=batch_norm_rows.links,
    needs_variance=False,
    derived=("mean", "rstd"),
    complete=batch_norm_rows.complete_backward,
)
