"""Norms whose output is multiplied by a function of a gate: their forms and ops, made from those of the norm.

The gate is a tensor of the input's shape. Its logistic function is T15 of docs/explanation/bounds.md; what a
division by 1 + exp(-gate) errs in the place of a product with it is less.
Source: flash-linear-attention, FusedRMSNormGated; Mamba 2, RMSNorm with norm_before_gate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any, Literal

from verifier.arithmetic.abstract_number import Form, Numbers, Terms, Value
from verifier.ops import Op
from verifier.ops.rows import formula, trailing_dimensions

GATE = "gate"
Activation = Literal["silu", "sigmoid"]
WIDTHS = {GATE: (0, 3, 0, 5)}
"""Powers of two of normal gates. Every other case has ordinary ones; the rest go to +-25 or so, where a
sigmoid made of a tangent has lost its digits, or to +-100, where the exponential overflows."""
OVER = " over the trailing dimensions"
SUMMARIES = {"silu": "gate * sigmoid(gate)", "sigmoid": "sigmoid(gate)"}


class WithMoments:
    """Numbers with other moments, forward and backward: saved ones, or those that a form makes itself."""

    def __init__(self, numbers: Numbers, moments: tuple[Value, Value]) -> None:
        """Take the moments: (mean, rstd), each (rows, 1)."""
        self._numbers, self._moments = numbers, moments

    def moments(self, _x: Value) -> tuple[Value, Value]:
        """Return the given ones."""
        return self._moments

    saved_moments = stepped_moments = moments

    def __getattr__(self, name: str) -> Any:
        """Do everything else as the numbers do."""
        return getattr(self._numbers, name)


def times_gate(k: Numbers, value: Value, gate: Value, activation: Activation) -> Value:
    """Return the value times the function of the gate; three factors are multiplied in any order."""
    factors = (k.sigmoid(gate),) if activation == "sigmoid" else (gate, k.sigmoid(gate))
    return in_any_order(k, value, *factors)


def in_any_order(k: Numbers, *factors: Value) -> Value:
    """Return the product of factors, which differs by the order only where a part of it is subnormal."""
    made: dict[frozenset[int], Value] = {frozenset([i]): factor for i, factor in enumerate(factors)}
    for size in range(2, len(factors) + 1):
        for part in map(frozenset, combinations(range(len(factors)), size)):
            first, *others = sorted(part)
            beside = (frozenset(s) for n in range(size - 1) for s in combinations(others, n))
            halves = [(part - (own := one | {first}), own) for one in beside]
            ways = [made[own] * made[rest] for rest, own in halves]
            made[part] = ways[0] if len(ways) == 1 else k.either(*ways)
    return made[frozenset(range(len(factors)))]


def times_slope(k: Numbers, incoming: Value, read: Value, gate: Value, activation: Activation) -> list[Value]:
    """Return the gate's gradient in each way to multiply it up, the slope being one factor or two.

    incoming: the gradient of what the function of the gate multiplies `read` to.
    """
    sigmoid, one = k.sigmoid(gate), k.constant(1.0)
    other = one - sigmoid if activation == "sigmoid" else one + gate * (one - sigmoid)
    slope = slope_of(k, gate, activation)
    return [in_any_order(k, incoming, read, slope), in_any_order(k, incoming, read, sigmoid, other)]


def slope_of(k: Numbers, gate: Value, activation: Activation) -> Value:
    """Return the derivative of the function of the gate, in one of the ways to write it."""
    sigmoid, one = k.sigmoid(gate), k.constant(1.0)
    off = one - sigmoid
    if activation == "sigmoid":
        return sigmoid * off
    return k.either(
        sigmoid * (one + gate * off), sigmoid + gate * sigmoid * off, sigmoid + gate * (sigmoid * off)
    )


def parts_of_silu(k: Numbers, grad_output: Value, norm: Value, gate: Value) -> list[Value]:
    """Return the gradient of a gate as autograd adds it up where gate * sigmoid(gate) was written out.

    It has a part through the gate and one through its logistic function. Where each was given a gate of its
    own, converted from the input's dtype, each part is rounded to that before they are added.
    """
    sigmoid = k.sigmoid(gate)
    through_gate = (
        grad_output * sigmoid * norm,
        grad_output * norm * sigmoid,
        grad_output * (norm * sigmoid),
    )
    scaled = (grad_output * (norm * gate), grad_output * norm * gate, grad_output * gate * norm)
    first = k.either(*through_gate)
    second = k.either(*(one * (k.constant(1.0) - sigmoid) * sigmoid for one in scaled))
    return [first + second, k.cast(first, "input") + k.cast(second, "input")]


def gated(form: Form, activation: Activation, *, cast: bool) -> Form:
    """Return the form of a norm that is gated; cast: its output is rounded to the input's dtype before that.

    The norm that the gate's gradient reads was kept, or is computed again from the saved statistics.
    """

    def held(k: Numbers, value: Value) -> Value:
        return k.cast(value, "input") if cast else value

    def opened(k: Numbers, t: Terms) -> Value:
        return times_gate(k, held(k, form.forward(k, t)), t.further[GATE], activation)

    def forward(k: Numbers, t: Terms) -> Value:
        found = opened(k, t)
        if t.weight is None or t.bias is not None:
            return found
        return k.either(found, opened(k, replace(t, weight=None)) * t.weight)  # a factor like any other

    def backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
        gate = t.further[GATE]
        norm = held(k, k.either(form.forward(k, t), form.forward(WithMoments(k, k.saved_moments(t.x)), t)))
        incoming = held(k, times_gate(k, t.grad_output, gate, activation))
        gradients = form.backward(k, replace(t, grad_output=incoming))
        ways = times_slope(k, t.grad_output, norm, gate, activation)
        if activation == "silu" and form.name == "autograd":
            ways += parts_of_silu(k, t.grad_output, norm, gate)
        return {**gradients, "grad_gate": k.either(*ways)}

    rounded = ", rounded to the input's dtype" if cast else ""
    forward.__doc__ = f"{first_sentence(form.forward)}{rounded}, times the function of the gate."
    backward.__doc__ = (
        f"{first_sentence(form.backward)}, of a gradient that went through the gate, and the gate's own."
    )
    return replace(form, name=_named(form.name, cast=cast), forward=forward, backward=backward)


def first_sentence(function: Callable[..., object]) -> str:
    """Return the first sentence of a docstring, without its full stop."""
    return (function.__doc__ or "").split("\n\n")[0].strip().rstrip(".")


def _named(name: str, *, cast: bool) -> str:
    if not cast:
        return name
    return "rounded_norm" if name == "canonical" else f"rounded_norm_{name}"


def gated_forms(forms: Mapping[str, Form], activation: Activation) -> dict[str, Form]:
    """Return the forms of a gated norm: each of the norm's, as it is computed and rounded before the gate."""
    every = [gated(form, activation, cast=cast) for cast in (False, True) for form in forms.values()]
    return {form.name: form for form in every}


def gated_op(norm: Op, activation: Activation, *, centred: bool) -> Op:
    """Return the op of a norm over trailing dimensions that is gated afterwards."""
    forms = gated_forms(norm.forms, activation)
    tensors = ("input", GATE, *norm.tensors[1:])
    return replace(
        norm,
        name=f"{norm.name}_{activation}_gate",
        theorems=("T15",),
        summary=f"({norm.summary.removesuffix(OVER)}) * {SUMMARIES[activation]}{OVER}",
        tensors=tensors,
        differentiable=tensors,
        varied=(GATE,),
        scales=WIDTHS,
        forms=forms,
        shapes=partial(trailing_dimensions.shapes, tensors=norm.tensors, like=(GATE,)),
        problem=partial(formula.problem, form=next(iter(forms.values())), centred=centred, further=(GATE,)),
        exact=formula.exact,
        bounds=formula.bounds,
        expected=formula.expected,
        links=partial(trailing_dimensions.links, like=(GATE,)),
    )
