"""causal_softmax: masked_softmax of the elements up to a diagonal: column j in row i where j <= i + diagonal.

Rows and columns are those of the last two axes. The diagonal is 0 where a kernel takes none, as in
torch.nn.functional.scaled_dot_product_attention with is_causal: the first row has one element. A kernel whose
last row has all of them, as flash attention has it, takes diagonal, and is called with columns - rows too.
"""

from __future__ import annotations

from verifier.ops.masked_softmax import FORMS
from verifier.ops.rows.masked_ops import masked_op

MASKS = True
"""A declaration says what a fully masked row gives: `fully_masked`."""

OP = masked_op(
    name="causal_softmax",
    summary="masked_softmax where column j of the last two axes is at most row i + diagonal",
    forms=FORMS,
    logarithm=False,
    causal=True,
)
