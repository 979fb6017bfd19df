"""layer_norm_backward: the VJP of layer_norm at given mean and rstd."""

from __future__ import annotations

from functools import partial

from verifier.ops import Op
from verifier.ops.layer_norm import FORMS
from verifier.ops.rows import results, trailing_dimensions
from verifier.ops.rows.compose_bounds import rows_bounds

TENSORS = ("grad_output", "input", "weight", "mean", "rstd")

OP = Op(
    name="layer_norm_backward",
    summary="grad_input, grad_weight, grad_bias of layer_norm at given mean and rstd",
    tensors=TENSORS,
    optional=("weight",),
    outputs=("grad_input", "grad_weight", "grad_bias"),
    variants=trailing_dimensions.VARIANTS,
    forms=FORMS,
    shapes=partial(trailing_dimensions.shapes, tensors=TENSORS),
    canonical=trailing_dimensions.canonical,
    problem=partial(trailing_dimensions.given_problem, centred=True),
    exact=trailing_dimensions.exact,
    bounds=rows_bounds,
    expected=results.expected_backward,
    extents=trailing_dimensions.extents,
    links=trailing_dimensions.links,
    needs_variance=False,
    derived=("mean", "rstd"),
    complete=partial(trailing_dimensions.complete_backward, centred=True),
)
