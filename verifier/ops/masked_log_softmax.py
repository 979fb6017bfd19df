"""masked_log_softmax: the logarithm of masked_softmax, -inf where an element takes no part.

No gradient comes to a logarithm of -inf: a loss that reads it is infinite. Cases have zeros there.
"""

from __future__ import annotations

from verifier.ops import log_softmax
from verifier.ops.rows.masked_ops import masked_forms, masked_op

MASKS = True
"""A declaration says what a fully masked row gives: `fully_masked`."""

FORMS = masked_forms(log_softmax.FORMS)

OP = masked_op(
    name="masked_log_softmax",
    summary="log_softmax of input * scale + attn_bias over the last dimension, where mask is True",
    forms=FORMS,
    logarithm=True,
    causal=False,
)
