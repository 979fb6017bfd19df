"""Norms whose output is multiplied by a function of a gate: their forms and ops, made from those of the norm.

The gate is a tensor of the input's shape. Its logistic function is T15 of docs/explanation/bounds.md; what a
division by 1 + exp(-gate) errs in the place of a product with it is less.
Source: flash-linear-attention, FusedRMSNormGated; Mamba 2, RMSNorm with norm_before_gate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial, reduce
from itertools import combinations
from typing import Any, Literal

from verifier.arithmetic.abstract_number import Form, Numbers, Terms, Value, one_of
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


@dataclass(frozen=True, eq=False)
class Gate:
    """A gate in one pass: its function is the gate times its logistic function, or that alone.

    value: the gate itself, (rows, columns).
    """

    k: Numbers
    value: Value
    activation: Activation

    @cached_property
    def sigmoid(self) -> Value:
        """The logistic function of the gate, the dearest of a pass, which all that reads it shares."""
        return self.k.sigmoid(self.value)

    @cached_property
    def off(self) -> Value:
        """What the logistic function lacks of 1."""
        return self.k.constant(1.0) - self.sigmoid

    def times(self, value: Value) -> Value:
        """Return the value times the function of the gate; three factors are multiplied in any order."""
        factors = (self.sigmoid,) if self.activation == "sigmoid" else (self.value, self.sigmoid)
        return in_any_order(self.k, value, *factors)

    def times_slope(self, incoming: Value, read: Value) -> list[Callable[[], Value]]:
        """Return ways to the gate's gradient: the slope is one factor or two, multiplied up in any order.

        incoming: the gradient of what the function of the gate multiplies `read` to.
        """

        def by_two_factors() -> Value:
            one = self.k.constant(1.0)
            other = self.off if self.activation == "sigmoid" else one + self.value * self.off
            return in_any_order(self.k, incoming, read, self.sigmoid, other)

        return [lambda: in_any_order(self.k, incoming, read, self._slope), by_two_factors]

    @property
    def _slope(self) -> Value:
        """The derivative of the function of the gate, in one of the ways to write it."""
        gate, sigmoid, off = self.value, self.sigmoid, self.off
        if self.activation == "sigmoid":
            return sigmoid * off
        return one_of(
            self.k,
            lambda: sigmoid * (self.k.constant(1.0) + gate * off),
            lambda: sigmoid + gate * sigmoid * off,
            lambda: sigmoid + gate * (sigmoid * off),
        )

    def by_parts(self, grad_output: Value, norm: Value) -> list[Callable[[], Value]]:
        """Return ways to the gate's gradient as autograd adds it up where gate * sigmoid(gate) was written.

        It has a part through the gate and one through its logistic function. Where each was given a gate of
        its own, converted from the input's dtype, each part is rounded to that before they are added.
        """
        k, gate, sigmoid = self.k, self.value, self.sigmoid

        @cache
        def parts() -> tuple[Value, Value]:
            through_gate = (
                grad_output * sigmoid * norm,
                grad_output * norm * sigmoid,
                grad_output * (norm * sigmoid),
            )
            scaled = (grad_output * (norm * gate), grad_output * norm * gate, grad_output * gate * norm)
            return k.either(*through_gate), k.either(*(one * self.off * sigmoid for one in scaled))

        def added() -> Value:
            first, second = parts()
            return first + second

        def added_as_stored() -> Value:
            first, second = parts()
            return k.cast(first, "input") + k.cast(second, "input")

        return [added, added_as_stored]


def in_any_order(k: Numbers, *factors: Value) -> Value:
    """Return the product of factors, which differs by the order only where a part of it is subnormal."""
    if not k.rounds:
        last, *others = reversed(factors)
        return reduce(lambda product, factor: factor * product, others, last)
    made: dict[frozenset[int], Value] = {frozenset([i]): factor for i, factor in enumerate(factors)}
    for size in range(2, len(factors) + 1):
        for part in map(frozenset, combinations(range(len(factors)), size)):
            first, *others = sorted(part)
            beside = (frozenset(s) for n in range(size - 1) for s in combinations(others, n))
            halves = [(part - (own := one | {first}), own) for one in beside]
            ways = [made[own] * made[rest] for rest, own in halves]
            made[part] = ways[0] if len(ways) == 1 else k.either(*ways)
    return made[frozenset(range(len(factors)))]


def gated(form: Form, activation: Activation, *, cast: bool) -> Form:
    """Return the form of a norm that is gated; cast: its output is rounded to the input's dtype before that.

    The norm that the gate's gradient reads was kept, or is computed again from the saved statistics.
    """

    def held(k: Numbers, value: Value) -> Value:
        return k.cast(value, "input") if cast else value

    def forward(k: Numbers, t: Terms) -> Value:
        gate = Gate(k, t.further[GATE], activation)

        def opened(t: Terms) -> Value:
            return gate.times(held(k, form.forward(k, t)))

        if t.weight is None or t.bias is not None:
            return opened(t)
        # The weight is a factor like any other.
        return one_of(k, lambda: opened(t), lambda: opened(replace(t, weight=None)) * t.weight)

    def backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
        gate = Gate(k, t.further[GATE], activation)
        saved = WithMoments(k, k.saved_moments(t.x))
        norm = held(k, one_of(k, lambda: form.forward(k, t), lambda: form.forward(saved, t)))
        incoming = held(k, gate.times(t.grad_output))
        gradients = form.backward(k, replace(t, grad_output=incoming))
        ways = gate.times_slope(t.grad_output, norm)
        if activation == "silu" and form.name == "autograd":
            ways += gate.by_parts(t.grad_output, norm)
        return {**gradients, "grad_gate": one_of(k, *ways)}

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
