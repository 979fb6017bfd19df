"""rms_norm_backward: the VJP of rms_norm at given rstd."""

from __future__ import annotations

from functools import partial

from verifier.ops import Op
from verifier.ops.rms_norm import FORMS
from verifier.ops.rows import results, trailing_dimensions
from verifier.ops.rows.compose_bounds import rows_bounds

TENSORS = ("grad_output", "input", "weight", "rstd")

OP = Op(
    name="rms_norm_backward",
    summary="grad_input, grad_weight of rms_norm at given rstd",
    tensors=TENSORS,
    optional=("weight",),
    outputs=("grad_input", "grad_weight"),
    variants=trailing_dimensions.VARIANTS,
    forms=FORMS,
    shapes=partial(trailing_dimensions.shapes, tensors=TENSORS),
    canonical=trailing_dimensions.canonical,
    problem=partial(trailing_dimensions.given_problem, centred=False),
    exact=trailing_dimensions.exact,
    bounds=rows_bounds,
    expected=results.expected_backward,
    extents=trailing_dimensions.extents,
    links=trailing_dimensions.links,
    needs_variance=False,
    derived=("rstd",),
    complete=partial(trailing_dimensions.complete_backward, centred=False),
)
