"""softmax_backward: the VJP of softmax at a given output."""

from __future__ import annotations

from verifier.ops.rows.softmax_ops import backward_op
from verifier.ops.softmax import FORMS

OP = backward_op(
    name="softmax_backward", summary="grad_input of softmax at a given output", forms=FORMS, logarithm=False
)
