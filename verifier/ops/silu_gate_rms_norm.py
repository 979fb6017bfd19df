"""silu_gate_rms_norm: rms_norm of input * gate * sigmoid(gate), over trailing dimensions.

What is normalized is computed, so that no theorem of a variance has exact rows to speak of: its mean square
is a sum of T10, in which nothing cancels.
Source: Mamba 2, RMSNormGated with norm_before_gate false; see `verifier.ops.rows.gates`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from verifier.arithmetic.abstract_number import Form, Numbers, Terms, Value
from verifier.ops import Op, special_values
from verifier.ops.rms_norm import FORMS as OF_THE_NORM
from verifier.ops.rms_norm import machine_epsilon
from verifier.ops.rows import formula, trailing_dimensions
from verifier.ops.rows.gates import GATE, WithMoments, first_sentence, slope_of, times_gate

TENSORS = ("input", GATE, "weight")
U = "with input * gate * sigmoid(gate) in the place of x"


def gate_first(form: Form, *, cast: bool) -> Form:
    """Return the form of an RMS norm of what is gated; cast: which is rounded to the input's dtype."""

    def gated(k: Numbers, t: Terms) -> Value:
        value = times_gate(k, t.x, t.further[GATE], "silu")
        return k.cast(value, "input") if cast else value

    def shared(k: Numbers, t: Terms) -> Mapping[str, Value]:
        u = gated(k, t)
        return {"rstd": k.share(k.rsqrt(k.mean(u * u) + t.further[formula.EPS]), "rstd")}

    def of_the_norm(k: Numbers, t: Terms) -> tuple[WithMoments, Terms]:
        return WithMoments(k, (k.constant(0.0), t.further["rstd"])), replace(t, x=gated(k, t))

    def forward(k: Numbers, t: Terms) -> Value:
        return form.forward(*of_the_norm(k, t))

    def backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
        found, gate = dict(form.backward(*of_the_norm(k, t))), t.further[GATE]
        of_gated = found["grad_input"]
        of_gated = k.cast(of_gated, "input") if cast else of_gated
        found["grad_input"] = times_gate(k, of_gated, gate, "silu")
        slope = slope_of(k, gate, "silu")
        ways = (of_gated * t.x * slope, of_gated * slope * t.x, of_gated * (t.x * slope))
        found["grad_gate"] = k.either(*ways)
        return found

    rounded = ", rounded to the input's dtype" if cast else ""
    forward.__doc__ = f"{first_sentence(form.forward)}, {U}{rounded}."
    backward.__doc__ = f"{first_sentence(form.backward)}, {U}{rounded}, and what the product makes of it."
    name = form.name if not cast else f"rounded_gate_{form.name}".removesuffix("_canonical")
    return replace(form, name=name, forward=forward, backward=backward, shared=shared)


EVERY = [gate_first(form, cast=cast) for cast in (False, True) for form in OF_THE_NORM.values()]
CANONICAL = EVERY[0]
FORMS = {form.name: form for form in EVERY}

OP = Op(
    name="silu_gate_rms_norm",
    theorems=("T15",),
    summary="u / sqrt(mean(u**2) + eps) * weight over the trailing dimensions, u = x * gate * sigmoid(gate)",
    tensors=TENSORS,
    optional=("weight",),
    differentiable=TENSORS,
    varied=(GATE,),
    variants=trailing_dimensions.VARIANTS,
    forms=FORMS,
    shapes=partial(trailing_dimensions.shapes, tensors=("input", "weight"), like=(GATE,)),
    canonical=trailing_dimensions.canonical,
    problem=partial(formula.problem, form=CANONICAL, centred=False, further=(GATE,), moments=False),
    exact=formula.exact,
    bounds=formula.bounds,
    expected=formula.expected,
    extents=trailing_dimensions.extents,
    links=partial(trailing_dimensions.links, like=(GATE,)),
    needs_variance=False,
    reads_eps=True,
    special=special_values.root_mean_square,
    default_eps=machine_epsilon,
    scale_invariant=True,
)
