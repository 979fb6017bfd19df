"""l2_norm: y = x / sqrt(sum(x**2) + eps) over the trailing dimensions: rows of length one.

Source: flash-linear-attention, l2norm (queries and keys of delta rules).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from verifier.arithmetic.abstract_number import Form, Numbers, Terms, Value
from verifier.ops import Op, special_values
from verifier.ops.rows import formula, trailing_dimensions

TENSORS = ("input",)


def root(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return 1 / sqrt(sum(x**2) + eps), which both passes read."""
    return {"rstd": k.share(k.rsqrt(k.sum(t.x * t.x) + t.further[formula.EPS]), "rstd")}


def canonical_forward(_: Numbers, t: Terms) -> Value:
    """Return x * rstd."""
    return t.x * t.further["rstd"]


def _gradient(k: Numbers, t: Terms, y: Value) -> Mapping[str, Value]:
    """Return (g - y * sum(g * y)) * rstd, factored in one of three ways."""
    rstd, inner = t.further["rstd"], k.share(k.sum(t.grad_output * y), "inner")
    direct = t.grad_output * rstd
    ways = ((t.grad_output - y * inner) * rstd, direct - inner * y * rstd, direct - y * (inner * rstd))
    return {"grad_input": k.either(*ways)}


def canonical_backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return (g - y * sum(g * y)) * rstd with y = x * rstd."""
    return _gradient(k, t, t.x * t.further["rstd"])


def saved_backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return the same with y as it was stored in the output's dtype."""
    return _gradient(k, t, k.cast(t.output, "output"))


def autograd_backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return g * rstd - x * (sum(g * x) * rstd**3): the chain rule op by op, as autograd does it.

    The slope goes back through (sum + eps)**-1/2, or through sqrt(sum + eps) and the division by it; x is
    squared as a power, or as a product of x with itself.
    """
    rstd = t.further["rstd"]
    direct, half, ways = t.grad_output * rstd, k.constant(-0.5), []
    of_root = k.share(k.sum(t.grad_output * t.x), "grad_rstd") * (rstd * rstd * rstd)
    of_quotient = k.share(k.sum(t.grad_output * (t.x * rstd * rstd)), "grad_std") * rstd
    for slope in (of_root, of_quotient):
        through = half * slope
        ways += [direct + through * (k.constant(2.0) * t.x), direct + through * t.x + through * t.x]
    return {"grad_input": k.either(*ways)}


CANONICAL = Form(name="canonical", forward=canonical_forward, backward=canonical_backward, shared=root)
FORMS = {
    form.name: form
    for form in (
        CANONICAL,
        Form(name="saved_output", forward=canonical_forward, backward=saved_backward, shared=root),
        Form(name="autograd", forward=canonical_forward, backward=autograd_backward, shared=root),
    )
}

OP = Op(
    name="l2_norm",
    summary="x / sqrt(sum(x**2) + eps) over the trailing dimensions",
    tensors=TENSORS,
    differentiable=TENSORS,
    variants=trailing_dimensions.VARIANTS,
    forms=FORMS,
    shapes=partial(trailing_dimensions.shapes, tensors=TENSORS),
    canonical=trailing_dimensions.canonical,
    problem=partial(formula.problem, form=CANONICAL, centred=False, moments=False),
    exact=formula.exact,
    bounds=formula.bounds,
    expected=formula.expected,
    extents=trailing_dimensions.extents,
    links=trailing_dimensions.links,
    needs_variance=False,
    reads_eps=True,
    special=special_values.root_mean_square,
    scale_invariant=True,
)
