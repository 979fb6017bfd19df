"""group_norm_backward: the VJP of group_norm at given mean and rstd."""

from __future__ import annotations

from functools import partial

from verifier.ops import Op
from verifier.ops.group_norm import FORMS
from verifier.ops.rows import groups, results, trailing_dimensions

TENSORS = ("grad_output", "input", "weight", "mean", "rstd")

OP = Op(
    name="group_norm_backward",
    summary="grad_input, grad_weight, grad_bias of group_norm at given mean and rstd",
    tensors=TENSORS,
    optional=("weight",),
    outputs=("grad_input", "grad_weight", "grad_bias"),
    variants=groups.VARIANTS,
    forms=FORMS,
    shapes=partial(groups.shapes, tensors=TENSORS),
    takes=groups.takes,
    canonical=groups.canonical,
    problem=groups.given_problem,
    exact=trailing_dimensions.exact,
    further=groups.further,
    bounds=groups.bounds,
    expected=results.expected_backward,
    extents=groups.extents,
    at_integers=groups.at_integers,
    links=groups.links,
    needs_variance=False,
    derived=("mean", "rstd"),
    complete=groups.complete_backward,
)
