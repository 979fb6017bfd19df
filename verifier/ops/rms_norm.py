"""rms_norm: y = x / sqrt(mean(x**2) + eps) * weight over trailing dimensions.

Source: Zhang, Sennrich 2019; torch.nn.functional.rms_norm.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping
from functools import partial

import torch

from verifier.arithmetic.abstract_number import Form, Numbers, Terms, Value
from verifier.arithmetic.formats import FORMATS
from verifier.ops import Op, special_values
from verifier.ops.layer_norm import affine, parameter_gradients, through_variance
from verifier.ops.rows import results, trailing_dimensions
from verifier.ops.rows.compose_bounds import rows_bounds

TENSORS = ("input", "weight")


def canonical_forward(k: Numbers, t: Terms) -> Value:
    """Return x * rstd * weight."""
    _, rstd = k.moments(t.x)
    return affine(t.x * rstd, t)


def _canonical_gradient(k: Numbers, g: Value, normalized: Value, rstd: Value) -> Value:
    return (g - normalized * k.mean(normalized * g)) * rstd


def canonical_backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return (g - xhat * c1) * rstd with g = grad_output * weight, c1 = mean(xhat * g)."""
    _, rstd = k.saved_moments(t.x)
    normalized = t.x * rstd
    g = t.grad_output if t.weight is None else t.grad_output * t.weight
    grad_input = _canonical_gradient(k, g, normalized, rstd)
    return {"grad_input": grad_input, **parameter_gradients(k, t, normalized)}


def cast_forward(k: Numbers, t: Terms) -> Value:
    """Return x * rstd rounded to the input's dtype before the multiplication by weight (Llama's order)."""
    _, rstd = k.moments(t.x)
    return affine(k.cast(t.x * rstd, "input"), t)


def cast_backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return the chain rule of the forward pass with its casts, in autograd's order or in the canonical one.

    g = grad_output * weight and grad_output * cast(x * rstd), which is summed to grad_weight, are products
    in the input's dtype, as those of the forward pass are.
    """
    _, rstd = k.saved_moments(t.x)
    g = t.grad_output if t.weight is None else k.cast(t.grad_output * t.weight, "input")
    normalized = t.x * rstd
    ways = (_canonical_gradient(k, g, normalized, rstd), *_autograd_gradients(k, g, t.x, rstd))
    gradients = {"grad_input": k.either(*ways)}
    if t.weight is not None:
        products = k.cast(t.grad_output * k.cast(normalized, "input"), "input")
        gradients["grad_weight"] = k.parameter_sum(products)
    return gradients


def _autograd_parts(k: Numbers, g: Value, x: Value, rstd: Value) -> Iterator[tuple[Value, ...]]:
    direct = g * rstd
    for slope in through_variance(k, g, x, rstd):
        yield direct, slope * (k.constant(2.0) * x)
        once = slope * x
        yield direct, once, once


def _autograd_gradients(k: Numbers, g: Value, x: Value, rstd: Value) -> Iterator[Value]:
    """Yield the sums of what autograd adds up."""
    for summands in _autograd_parts(k, g, x, rstd):
        yield functools.reduce(operator.add, summands)


def autograd_parts(k: Numbers, t: Terms) -> Iterator[tuple[Value, ...]]:
    """Yield the summands of g * rstd + 2 x * (-1/2 sum(g * x) * rstd**3 / N), as autograd makes them.

    x may be squared as a power, or as a product of x with itself.
    """
    _, rstd = k.saved_moments(t.x)
    g = t.grad_output if t.weight is None else t.grad_output * t.weight
    yield from _autograd_parts(k, g, t.x, rstd)


def autograd_backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return the chain rule op by op, as autograd does."""
    _, rstd = k.saved_moments(t.x)
    g = t.grad_output if t.weight is None else t.grad_output * t.weight
    grad_input = k.either(*_autograd_gradients(k, g, t.x, rstd))
    return {"grad_input": grad_input, **parameter_gradients(k, t, t.x * rstd)}


def _input_sum_gradient(k: Numbers, g: Value, x: Value, rstd: Value) -> Value:
    """Return g * rstd - rstd**3 / N * sum(g * x) * x, 1/N being a factor, in one of three orders.

    Source: the backward kernels of Liger-Kernel's RMS norms: one row, several rows, with a residual.
    """
    share, total, direct = -(k.constant(1.0) / k.count()), k.sum(g * x), g * rstd
    return k.either(
        direct + rstd * (share * rstd * rstd * total * x),
        direct + rstd * (share * (rstd * rstd * total) * x),
        direct + share * rstd * rstd * rstd * total * x,
    )


def input_sums_backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return the gradient by sum(g * x), g = grad_output * weight, in the place of mean(xhat * g)."""
    _, rstd = k.saved_moments(t.x)
    g = t.grad_output if t.weight is None else t.grad_output * t.weight
    return {"grad_input": _input_sum_gradient(k, g, t.x, rstd), **parameter_gradients(k, t, t.x * rstd)}


def cast_input_sums_backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return the same; products that are summed to grad_weight are rounded as in the forward pass."""
    _, rstd = k.saved_moments(t.x)
    g = t.grad_output if t.weight is None else t.grad_output * t.weight
    gradients = {"grad_input": _input_sum_gradient(k, g, t.x, rstd)}
    if t.weight is not None:
        products = k.cast(t.grad_output * k.cast(t.x * rstd, "input"), "input")
        gradients["grad_weight"] = k.parameter_sum(products)
    return gradients


def machine_epsilon(dtype: str) -> float | None:
    """Return what eps=None means: the spacing of the dtype at 1.

    PyTorch's page says the spacing of the input's dtype, its code has that of float32 for half inputs: there
    it is not settled.
    """
    return (
        None
        if FORMATS[dtype].precision < FORMATS["float32"].precision
        else torch.finfo(getattr(torch, dtype)).eps
    )


FORMS = {
    form.name: form
    for form in (
        Form(name="canonical", forward=canonical_forward, backward=canonical_backward),
        Form(name="cast_before_weight", forward=cast_forward, backward=cast_backward),
        Form(name="cast_before_weight_forward", forward=cast_forward, backward=canonical_backward),
        Form(
            name="autograd",
            forward=canonical_forward,
            backward=autograd_backward,
            parts=autograd_parts,
        ),
        Form(name="input_sums", forward=canonical_forward, backward=input_sums_backward),
        Form(name="cast_before_weight_input_sums", forward=cast_forward, backward=cast_input_sums_backward),
    )
}

OP = Op(
    name="rms_norm",
    summary="x / sqrt(mean(x**2) + eps) * weight over the trailing dimensions",
    tensors=TENSORS,
    optional=("weight",),
    differentiable=("input", "weight"),
    variants=trailing_dimensions.VARIANTS,
    forms=FORMS,
    shapes=partial(trailing_dimensions.shapes, tensors=TENSORS),
    canonical=trailing_dimensions.canonical,
    problem=partial(trailing_dimensions.problem, centred=False),
    exact=trailing_dimensions.exact,
    bounds=rows_bounds,
    expected=results.expected,
    extents=trailing_dimensions.extents,
    links=trailing_dimensions.links,
    special=special_values.root_mean_square,
    default_eps=machine_epsilon,
    needs_mean=False,
    scale_invariant=True,
)
