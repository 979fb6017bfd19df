"""batch_norm_backward: the VJP of batch_norm in training at given mean and rstd."""

from __future__ import annotations

from functools import partial

from verifier.ops import Op
from verifier.ops.batch_norm import FORMS
from verifier.ops.rows import channels, results, trailing_dimensions

TENSORS = ("grad_output", "input", "weight", "mean", "rstd")

OP = Op(
    name="batch_norm_backward",
    summary="grad_input, grad_weight, grad_bias of batch_norm in training at given mean and rstd",
    tensors=TENSORS,
    optional=("weight",),
    outputs=("grad_input", "grad_weight", "grad_bias"),
    variants=3,
    forms=FORMS,
    shapes=partial(channels.shapes, tensors=TENSORS),
    canonical=channels.canonical,
    problem=channels.given_problem,
    exact=trailing_dimensions.exact,
    bounds=channels.given_bounds,
    expected=results.expected_backward,
    extents=channels.extents,
    links=channels.links,
    needs_variance=False,
    derived=("mean", "rstd"),
    complete=channels.complete_backward,
)
