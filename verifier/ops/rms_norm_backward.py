"""rms_norm_backward: the VJP of rms_norm at given rstd."""

from __future__ import annotations

from functools import partial

from verifier.ops import Op, trailing
from verifier.ops.rms_norm import FORMS

TENSORS = ("grad_output", "input", "weight", "rstd")

OP = Op(
    name="rms_norm_backward",
    summary="grad_input, grad_weight of rms_norm at given rstd",
    tensors=TENSORS,
    optional=("weight",),
    outputs=("grad_input", "grad_weight"),
    variants=trailing.VARIANTS,
    forms=FORMS,
    shapes=partial(trailing.shapes, tensors=TENSORS),
    canonical=trailing.canonical,
    problem=partial(trailing.given_problem, centred=False),
    exact=trailing.exact,
    bounds=trailing.bounds_with(centred=False, given=True),
    expected=trailing.expected_backward,
    extents=trailing.extents,
    links=trailing.links,
    needs_variance=False,
    derived=("rstd",),
    complete=partial(trailing.complete_backward, centred=False),
)
