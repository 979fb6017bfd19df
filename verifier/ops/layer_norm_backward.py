"""layer_norm_backward: the VJP of layer_norm at given mean and rstd."""

from __future__ import annotations

from functools import partial

from verifier.ops import Op, trailing
from verifier.ops.layer_norm import FORMS

TENSORS = ("grad_output", "input", "weight", "mean", "rstd")

OP = Op(
    name="layer_norm_backward",
    summary="grad_input, grad_weight, grad_bias of layer_norm at given mean and rstd",
    tensors=TENSORS,
    optional=("weight",),
    outputs=("grad_input", "grad_weight", "grad_bias"),
    variants=trailing.VARIANTS,
    forms=FORMS,
    shapes=partial(trailing.shapes, tensors=TENSORS),
    canonical=trailing.canonical,
    problem=partial(trailing.given_problem, centred=True),
    exact=trailing.exact,
    bounds=trailing.bounds_with(centred=True, given=True),
    expected=trailing.expected_backward,
    extents=trailing.extents,
    links=trailing.links,
    needs_variance=False,
    derived=("mean", "rstd"),
    complete=partial(trailing.complete_backward, centred=True),
)
