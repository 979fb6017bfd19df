"""rms_norm: y = x / sqrt(mean(x**2) + eps) * weight over trailing dimensions.

Source: Zhang, Sennrich 2019; torch.nn.functional.rms_norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from verifier.numbers import Form, Numbers, Terms, Value
from verifier.ops import Op, special, trailing
from verifier.ops.layer_norm import affine, parameter_gradients

TENSORS = ("input", "weight")


def canonical_forward(k: Numbers, t: Terms) -> Value:
    """Return x * rstd * weight."""
    _, rstd = k.moments(t.x)
    return affine(t.x * rstd, t)


def canonical_backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return (g - xhat * c1) * rstd with g = grad_output * weight, c1 = mean(xhat * g)."""
    _, rstd = k.saved_moments(t.x)
    normalized = t.x * rstd
    g = t.grad_output if t.weight is None else t.grad_output * t.weight
    grad_input = (g - normalized * k.mean(normalized * g)) * rstd
    return {"grad_input": grad_input, **parameter_gradients(k, t, normalized)}


def cast_forward(k: Numbers, t: Terms) -> Value:
    """Return x * rstd rounded to the input's dtype before the multiplication by weight (Llama's order)."""
    _, rstd = k.moments(t.x)
    return affine(k.cast(t.x * rstd, "input"), t)


def autograd_backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return g * rstd + 2 x * (-1/2 sum(g * x) * rstd**3 / N): the chain rule op by op, as autograd does."""
    _, rstd = k.saved_moments(t.x)
    g = t.grad_output if t.weight is None else t.grad_output * t.weight
    grad_rstd = k.share(k.sum(g * t.x), "grad_rstd")
    cube = rstd * rstd * rstd
    slope = k.share(k.constant(-0.5) * grad_rstd * cube / k.count(), "slope", product=True)
    grad_input = g * rstd + slope * (k.constant(2.0) * t.x)
    return {"grad_input": grad_input, **parameter_gradients(k, t, t.x * rstd)}


FORMS = {
    form.name: form
    for form in (
        Form(name="canonical", forward=canonical_forward, backward=canonical_backward),
        Form(name="cast_before_weight", forward=cast_forward, backward=canonical_backward),
        Form(name="autograd", forward=canonical_forward, backward=autograd_backward),
    )
}

OP = Op(
    name="rms_norm",
    summary="x / sqrt(mean(x**2) + eps) * weight over the trailing dimensions",
    tensors=TENSORS,
    optional=("weight",),
    differentiable=("input", "weight"),
    variants=trailing.VARIANTS,
    forms=FORMS,
    shapes=partial(trailing.shapes, tensors=TENSORS),
    canonical=trailing.canonical,
    problem=partial(trailing.problem, centred=False),
    exact=trailing.exact,
    bounds=trailing.bounds_with(centred=False, given=False),
    expected=trailing.expected,
    extents=trailing.extents,
    links=trailing.links,
    special=special.root_mean_square,
    scale_invariant=True,
)
