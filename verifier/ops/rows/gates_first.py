"""Norms of an input that a function of a gate multiplies first: forms and ops, made from those of the norm.

What is normalized is computed, so that no theorem of a variance has exact rows to speak of: its statistics
are part of the form. A mean, and the mean of squares about it, are sums of T10; where a mean is taken away,
that is the algorithm of two passes, and no form has another.
Source: Mamba 2, layernorm_gated with norm_before_gate false; docs/explanation/bounds.md, T15.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch

from verifier.arithmetic.abstract_number import Form, Numbers, Terms, Value, one_of
from verifier.ops import Op, Tensors
from verifier.ops.rows import formula, trailing_dimensions
from verifier.ops.rows.gates import (
    GATE,
    OVER,
    SUMMARIES,
    WIDTHS,
    Activation,
    Gate,
    WithMoments,
    first_sentence,
)
from verifier.records.case import Scalars

OF_TWO_PASSES = ("canonical", "autograd", "scale_shift")
"""Forms of a layer norm whose statistics may be those of two passes: the others name a pass of their own, or
keep more of the mean than one number."""


def gate_first(form: Form, activation: Activation, *, centred: bool, cast: bool) -> Form:
    """Return the form of a norm of what is gated; cast: which is rounded to the input's dtype."""

    def gated(k: Numbers, t: Terms) -> Value:
        value = Gate(k, t.further[GATE], activation).times(t.x)
        return k.cast(value, "input") if cast else value

    def shared(k: Numbers, t: Terms) -> Mapping[str, Value]:
        return formula.statistics_of(k, gated(k, t), t.further[formula.EPS], centred=centred)

    def of_the_norm(k: Numbers, t: Terms) -> tuple[WithMoments, Terms]:
        mean = t.further["mean"] if centred else k.constant(0.0)
        return WithMoments(k, (mean, t.further["rstd"])), replace(t, x=gated(k, t))

    def forward(k: Numbers, t: Terms) -> Value:
        return form.forward(*of_the_norm(k, t))

    def backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
        found, gate = dict(form.backward(*of_the_norm(k, t))), Gate(k, t.further[GATE], activation)
        of_gated = found["grad_input"]
        of_gated = k.cast(of_gated, "input") if cast else of_gated
        found["grad_input"] = gate.times(of_gated)
        ways = gate.times_slope(of_gated, t.x)
        if activation == "silu" and form.name == "autograd":
            ways += gate.by_parts(of_gated, t.x)
        found["grad_gate"] = one_of(k, *ways)
        return found

    u = f"with input * {SUMMARIES[activation]} in the place of x"
    rounded = ", rounded to the input's dtype" if cast else ""
    forward.__doc__ = f"{first_sentence(form.forward)}, {u}{rounded}."
    backward.__doc__ = f"{first_sentence(form.backward)}, {u}{rounded}, and what the product makes of it."
    name = form.name if not cast else f"rounded_gate_{form.name}".removesuffix("_canonical")
    return replace(form, name=name, forward=forward, backward=backward, shared=shared)


def gate_first_forms(norm: Op, activation: Activation, *, centred: bool) -> dict[str, Form]:
    """Return the forms of a norm of what is gated, each with the product as it is made, and as rounded."""
    forms = [form for form in norm.forms.values() if not centred or form.name in OF_TWO_PASSES]
    every = [gate_first(f, activation, centred=centred, cast=cast) for cast in (False, True) for f in forms]
    return {form.name: form for form in every}


def normalized(tensors: Tensors, _scalars: Scalars, *, activation: Activation) -> torch.Tensor:
    """Return what is gated, in float64: of the input's shape and layout.

    A gate of -infinity is shut, though -inf * 0 is NaN.
    """
    x, gate = tensors["input"], tensors.get(GATE)
    assert x is not None
    if gate is None:
        return x
    z = gate.double().clamp(min=torch.finfo(torch.float64).min)
    opened = torch.sigmoid(z)
    return x.double() * (z * opened if activation == "silu" else opened)


def gate_first_op(norm: Op, activation: Activation, *, centred: bool) -> Op:
    """Return the op of a norm over trailing dimensions of what is gated. centred: it takes a mean away."""
    forms = gate_first_forms(norm, activation, centred=centred)
    tensors = ("input", GATE, *norm.tensors[1:])
    of_gated = re.sub(r"\bx\b", "u", norm.summary.removesuffix(OVER))
    return replace(
        norm,
        name=f"{activation}_gate_{norm.name}",
        theorems=("T15",),
        summary=f"{of_gated}{OVER}, u = x * {SUMMARIES[activation]}",
        tensors=tensors,
        differentiable=tensors,
        varied=(GATE,),
        scales=WIDTHS,
        normalized=partial(normalized, activation=activation),
        forms=forms,
        shapes=partial(trailing_dimensions.shapes, tensors=norm.tensors, like=(GATE,)),
        problem=partial(
            formula.problem,
            form=next(iter(forms.values())),
            centred=centred,
            further=(GATE,),
            moments=False,
        ),
        exact=formula.exact,
        bounds=formula.bounds,
        expected=formula.expected,
        links=partial(trailing_dimensions.links, like=(GATE,)),
        needs_variance=False,
        reads_eps=True,
        shift_invariant=False,
    )
