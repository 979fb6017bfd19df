"""Norms that multiply by 1 + weight: their forms and ops, made from those of the norm.

A weight that is learned as a difference from one starts at zero, and weight decay pulls it there.
Source: Gemma's RMSNorm; layer norm with `zero_centered_gamma` of Transformer Engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from verifier.arithmetic.abstract_number import Form, Numbers, Terms, Value
from verifier.ops import Op
from verifier.ops.rows import formula
from verifier.ops.rows.gates import first_sentence


def offset(form: Form, *, cast: bool) -> Form:
    """Return the form of a norm whose weight is 1 + weight; cast: which is rounded to the weight's dtype."""

    def moved(k: Numbers, t: Terms) -> Terms:
        weight = k.constant(1.0) + t.weight
        return replace(t, weight=k.cast(weight, "weight") if cast else weight)

    def forward(k: Numbers, t: Terms) -> Value:
        return form.forward(k, moved(k, t))

    def backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
        return form.backward(k, moved(k, t))

    rounded = "1 + weight, rounded to the weight's dtype," if cast else "1 + weight"
    for made, of in ((forward, form.forward), (backward, form.backward)):
        made.__doc__ = f"{first_sentence(of)}, where weight is {rounded.rstrip(',')}."
    return replace(form, name=_named(form.name, cast=cast), forward=forward, backward=backward)


def _named(name: str, *, cast: bool) -> str:
    if not cast:
        return name
    return "rounded_weight" if name == "canonical" else f"rounded_weight_{name}"


def offset_op(norm: Op, *, centred: bool) -> Op:
    """Return the op of a norm over trailing dimensions whose weight is 1 + weight, and always given."""
    every = [offset(form, cast=cast) for cast in (False, True) for form in norm.forms.values()]
    forms = {form.name: form for form in every}
    return replace(
        norm,
        name=f"{norm.name}_one_plus_weight",
        summary=norm.summary.replace("* weight", "* (1 + weight)"),
        optional=tuple(name for name in norm.optional if name != "weight"),
        forms=forms,
        problem=partial(formula.problem, form=every[0], centred=centred),
        exact=formula.exact,
        bounds=formula.bounds,
        expected=formula.expected,
    )
