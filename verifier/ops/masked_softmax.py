"""masked_softmax: softmax over the last dimension of input * scale + attn_bias, where mask is True.

mask is boolean and says what takes part, as in torch.nn.functional.scaled_dot_product_attention; attn_bias is
added, and -inf of it leaves an element out. Both broadcast to the input. No gradient of attn_bias is judged:
where it is broadcast, that is a sum over rows, which has bounds of its own.
"""

from __future__ import annotations

from dataclasses import replace

from verifier.arithmetic.abstract_number import Form, Numbers, Terms, Value
from verifier.ops import softmax
from verifier.ops.rows.masked_ops import masked, masked_forms, masked_op
from verifier.oracle.softmax.problem import ADDED, SCALE

MASKS = True
"""A declaration says what a fully masked row gives: `fully_masked`."""


def folded_scores(k: Numbers, t: Terms) -> Value:
    """Return the scores times l = log2(e): input * (scale * l) + attn_bias * l."""
    fold = k.log2_e()
    found = t.x * (fold if SCALE not in t.further else t.further[SCALE] * fold)
    return found + t.further[ADDED] * fold if ADDED in t.further else found


def folded_forward(k: Numbers, t: Terms) -> Value:
    """Return 2**(s - max(s)), s being scores times log2(e), by the sum of it or times its reciprocal."""
    moved = folded_scores(k, t)
    power = k.exp2(moved - k.maximum(moved))
    total = k.share(k.sum(power), "sum of powers")
    return k.either(power / total, power * (k.constant(1.0) / total))


def online_folded_forward(k: Numbers, t: Terms) -> Value:
    """Return the same with a sum that is made in one sweep, rescaled as the maximum grows."""
    moved = folded_scores(k, t)
    power, total = k.exp2(moved - k.maximum(moved)), k.online_sum(moved, base_two=True)
    return k.either(power / total, power * (k.constant(1.0) / total))


def folded(name: str, *, online: bool) -> Form:
    """Return a form of softmax whose scale has log2(e) multiplied into it, as flash attention has it."""
    forward = online_folded_forward if online else folded_forward
    return replace(masked(softmax.FORMS[name]), name=f"online_{name}" if online else name, forward=forward)


FOLDED = ("folded", "folded_recomputed")
FORMS = masked_forms({name: form for name, form in softmax.FORMS.items() if name not in FOLDED})
FORMS |= {form.name: form for online in (False, True) for form in (folded(n, online=online) for n in FOLDED)}

OP = masked_op(
    name="masked_softmax",
    summary="softmax of input * scale + attn_bias over the last dimension, where mask is True",
    forms=FORMS,
    logarithm=False,
    causal=False,
)
