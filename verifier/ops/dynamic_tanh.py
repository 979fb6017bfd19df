"""dynamic_tanh: y = tanh(alpha * x) * weight + bias, alpha a learned number: no statistics at all.

Source: Zhu, Chen, He, LeCun, Liu 2025, Transformers without Normalization; docs/explanation/bounds.md, T17.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from verifier.arithmetic.abstract_number import Form, Numbers, Terms, Value
from verifier.ops import Op
from verifier.ops.rows import formula, global_parameters, trailing_dimensions

ALPHA = "alpha"
TENSORS = ("input", ALPHA, "weight", "bias")
SIZES = {ALPHA: 1}
Tangent = Callable[[Numbers, Value], Value]


def library(k: Numbers, z: Value) -> Value:
    """Return tanh(z) by a function of a library."""
    return k.tanh(z)


def instruction(k: Numbers, z: Value) -> Value:
    """Return tanh(z) by tanh.approx.f32."""
    return k.tanh(z, approximate=True)


def exponential(k: Numbers, z: Value) -> Value:
    """Return tanh(z) by exp(2 z) or exp(-2 z), whose quotients and differences are written in several ways.

    With p for the exponential: 1 - 2 / (p + 1), 2 * sigmoid(2 z) - 1 (both signs), or (p - 1) / (p + 1).
    """
    one, two = k.constant(1.0), k.constant(2.0)
    grows, falls = k.exp(z * two), k.exp(-(z * two))
    logistic = k.sigmoid(z * two)
    return k.either(
        one - two / (grows + one),
        two / (one + falls) - one,
        two * logistic - one,
        (grows - one) / (grows + one),
        (one - falls) / (one + falls),
    )


def with_tangent(name: str, tangent: Tangent, *, autograd: bool = False) -> Form:
    """Return the form that takes the hyperbolic tangent so; autograd: with the chain rule op by op."""
    words = (tangent.__doc__ or "").split("\n\n")[0].removeprefix("Return ").rstrip(".")

    def hidden(k: Numbers, t: Terms) -> Value:
        return tangent(k, t.further[ALPHA] * t.x)

    def forward(k: Numbers, t: Terms) -> Value:
        output = hidden(k, t)
        output = output if t.weight is None else output * t.weight
        return output if t.bias is None else output + t.bias

    def backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
        curve, alpha, g = hidden(k, t), t.further[ALPHA], t.grad_output
        slope = k.constant(1.0) - curve * curve
        if t.weight is None:
            ways = [slope * g]
        elif autograd:
            ways = [g * t.weight * slope]
        else:
            ways = [slope * g * t.weight, g * t.weight * slope, slope * t.weight * g]
        through = k.either(*ways)
        found = {"grad_input": through * alpha, "grad_alpha": k.totals(through * t.x)}
        if t.weight is not None:
            found["grad_weight"] = k.parameter_sum(g * curve)
        if t.bias is not None:
            found["grad_bias"] = k.parameter_sum(g)
        return found

    forward.__doc__ = f"Return h * weight + bias, h = {words.replace('(z)', '(alpha * x)', 1)}."
    backward.__doc__ = (
        "Return g * weight * (1 - h * h) * alpha and sums: the chain rule op by op, as autograd does it"
        if autograd
        else "Return (1 - h * h) * g * weight * alpha, three factors in any order, and sums"
    ) + "."
    return Form(name=name, forward=forward, backward=backward)


CANONICAL = with_tangent("canonical", library)
FORMS = {
    form.name: form
    for form in (
        CANONICAL,
        with_tangent("exponential", exponential),
        with_tangent("approximate", instruction),
        with_tangent("autograd", library, autograd=True),
    )
}

OP = Op(
    name="dynamic_tanh",
    theorems=("T17",),
    summary="tanh(alpha * x) * weight + bias, weight and bias over the trailing dimensions",
    tensors=TENSORS,
    optional=("weight", "bias"),
    differentiable=TENSORS,
    wholes=(ALPHA,),
    varied=(ALPHA,),
    variants=trailing_dimensions.VARIANTS,
    forms=FORMS,
    shapes=partial(global_parameters.shapes, tensors=TENSORS, sizes=SIZES),
    canonical=partial(global_parameters.canonical, sizes=SIZES),
    problem=partial(global_parameters.problem, form=CANONICAL, sizes=SIZES),
    exact=formula.exact,
    bounds=formula.bounds,
    expected=formula.expected,
    extents=trailing_dimensions.extents,
    links=partial(global_parameters.links, sizes=SIZES),
    needs_variance=False,
)
