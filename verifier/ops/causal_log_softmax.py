"""causal_log_softmax: the logarithm of causal_softmax, -inf beyond the diagonal."""

from __future__ import annotations

from verifier.ops.masked_log_softmax import FORMS
from verifier.ops.rows.masked_ops import masked_op

MASKS = True
"""A declaration says what a fully masked row gives: `fully_masked`."""

OP = masked_op(
    name="causal_log_softmax",
    summary="masked_log_softmax where column j of the last two axes is at most row i + diagonal",
    forms=FORMS,
    logarithm=True,
    causal=True,
)
