"""log_softmax_backward: the VJP of log_softmax at a given output."""

from __future__ import annotations

from verifier.ops.log_softmax import FORMS
from verifier.ops.rows.softmax_ops import backward_op

OP = backward_op(
    name="log_softmax_backward",
    summary="grad_input of log_softmax at a given output",
    forms=FORMS,
    logarithm=True,
)
