"""group_norm_backward: the VJP of group_norm at given mean and rstd."""

from __future__ import annotations

from functools import partial

from verifier.ops import Op, group_norm_rows, trailing
from verifier.ops.group_norm import FORMS

TENSORS = ("grad_output", "input", "weight", "mean", "rstd")

OP = Op(
    name="group_norm_backward",
    summary="grad_input, grad_weight, grad_bias of group_norm at given mean and rstd",
    tensors=TENSORS,
    optional=("weight",),
    outputs=("grad_input", "grad_weight", "grad_bias"),
    variants=group_norm_rows.VARIANTS,
    forms=FORMS,
    shapes=partial(group_norm_rows.shapes, tensors=TENSORS),
    takes=group_norm_rows.takes,
    canonical=group_norm_rows.canonical,
    problem=group_norm_rows.given_problem,
    exact=trailing.exact,
    further=group_norm_rows.further,
    bounds=group_norm_rows.bounds_with(given=True),
    expected=group_norm_rows.expected_backward,
    extents=group_norm_rows.extents,
    links=group_norm_rows.links,
    needs_variance=False,
    derived=("mean", "rstd"),
    complete=group_norm_rows.complete_backward,
)
