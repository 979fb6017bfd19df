"""dropout_add_layer_norm: the layer norm of x = residual + dropout(input), and x itself.

The mask is given, True where the input is kept; what is kept is divided by 1 - p. Two gradients come in, of
the output and of x; the residual has that of the norm plus that of x, the input the same, masked and scaled.
Source: the fused block of Dao's flash-attention (`dropout_add_layer_norm`), whose mask can be returned.
"""

from __future__ import annotations

from functools import partial

from verifier.ops import Op, special_values
from verifier.ops.layer_norm import FORMS as OF_THE_NORM
from verifier.ops.rows import dropout, residual, trailing_dimensions
from verifier.oracle.rows.dropped import KEPT

TENSORS = ("input", "residual", KEPT, "weight", "bias")
ALIKE = ("residual",)

FORMS = dropout.dropped_forms(OF_THE_NORM)

OP = Op(
    name="dropout_add_layer_norm",
    theorems=("T14",),
    summary="(x - mean) / sqrt(var + eps) * weight + bias, and x = residual + input / (1 - p) where "
    "dropout_mask is True, over the trailing dimensions",
    tensors=TENSORS,
    optional=("weight", "bias"),
    differentiable=("input", "residual", "weight", "bias"),
    varied=(KEPT,),
    drawn={KEPT: dropout.drawn_mask},
    outputs=residual.OUTPUTS,
    incoming=residual.INCOMING,
    alike=ALIKE,
    normalized=dropout.normalized,
    variants=trailing_dimensions.VARIANTS,
    forms=FORMS,
    shapes=partial(dropout.shapes, tensors=TENSORS),
    told=dropout.told,
    canonical=trailing_dimensions.canonical,
    problem=partial(dropout.problem, norm=OF_THE_NORM, centred=True),
    reading=dropout.reading,
    posed=partial(dropout.posed, norm=OF_THE_NORM, centred=True),
    exact=dropout.exact,
    bounds=partial(dropout.bounds, norm=OF_THE_NORM),
    expected=residual.expected,
    extents=trailing_dimensions.extents,
    links=dropout.links,
    left_out=dropout.left_out,
    complete=dropout.complete,
    special=special_values.centred,
)
