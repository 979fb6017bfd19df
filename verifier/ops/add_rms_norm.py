"""add_rms_norm: the RMS norm of x = input + residual over trailing dimensions, and x itself.

Two gradients come in, of the output and of x; input and residual have the same one: that of the norm plus
that of x.
The exact output is that of the sum as the declared form reads it, rounded to the residual's dtype or kept.
Source: the pre-norm block of Xiong et al. 2020 with the norm of Zhang, Sennrich 2019.
"""

from __future__ import annotations

from functools import partial

from verifier.ops import Op, special_values
from verifier.ops.rms_norm import FORMS as OF_THE_NORM
from verifier.ops.rms_norm import machine_epsilon
from verifier.ops.rows import residual, trailing_dimensions

TENSORS = ("input", "residual", "weight")
ALIKE = ("residual",)

FORMS = residual.added_forms(OF_THE_NORM)

OP = Op(
    name="add_rms_norm",
    theorems=("T14",),
    summary="x / sqrt(mean(x**2) + eps) * weight, and x = input + residual, over the trailing dimensions",
    tensors=TENSORS,
    optional=("weight",),
    differentiable=TENSORS,
    outputs=residual.OUTPUTS,
    incoming=residual.INCOMING,
    alike=ALIKE,
    normalized=residual.normalized,
    variants=trailing_dimensions.VARIANTS,
    forms=FORMS,
    shapes=partial(residual.shapes, tensors=TENSORS),
    canonical=trailing_dimensions.canonical,
    problem=partial(residual.problem, centred=False),
    reading=residual.reading,
    posed=partial(residual.posed, centred=False),
    exact=residual.exact,
    bounds=residual.bounds,
    expected=residual.expected,
    extents=trailing_dimensions.extents,
    links=residual.links,
    complete=residual.complete,
    special=special_values.root_mean_square,
    default_eps=machine_epsilon,
    needs_mean=False,
)
