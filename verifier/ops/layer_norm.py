"""layer_norm: y = (x - mean) / sqrt(var + eps) * weight + bias over trailing dimensions.

Source: Ba, Kiros, Hinton 2016; torch.nn.functional.layer_norm (biased variance).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from verifier.arithmetic.abstract_number import Form, Numbers, Terms, Value
from verifier.ops import Op, special_values
from verifier.ops.rows import results, trailing_dimensions
from verifier.ops.rows.compose_bounds import rows_bounds

TENSORS = ("input", "weight", "bias")


def affine(value: Value, t: Terms) -> Value:
    """Return value * weight + bias, leaving out what is absent."""
    value = value if t.weight is None else value * t.weight
    return value if t.bias is None else value + t.bias


def canonical_forward(k: Numbers, t: Terms) -> Value:
    """Return (x - mean) * rstd * weight + bias."""
    mean, rstd = k.moments(t.x)
    return affine((t.x - mean) * rstd, t)


def parameter_gradients(k: Numbers, t: Terms, normalized: Value, held: str | None = None) -> dict[str, Value]:
    """Return grad_weight and grad_bias, which are sums over rows; `held`: see `Numbers.parameter_sum`."""
    gradients = {}
    if t.weight is not None:
        gradients["grad_weight"] = k.parameter_sum(t.grad_output * normalized, held)
    if t.bias is not None:
        gradients["grad_bias"] = k.parameter_sum(t.grad_output, held)
    return gradients


def canonical_backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return (g - (xhat * c1 + c2)) * rstd, g = grad_output * weight, c1 = mean(xhat * g), c2 = mean(g)."""
    mean, rstd = k.saved_moments(t.x)
    return _gradients(k, t, (t.x - mean) * rstd, rstd)


def _gradients(k: Numbers, t: Terms, normalized: Value, rstd: Value) -> Mapping[str, Value]:
    g = t.grad_output if t.weight is None else t.grad_output * t.weight
    c1, c2 = k.mean(normalized * g), k.mean(g)
    grad_input = (g - (normalized * c1 + c2)) * rstd
    return {"grad_input": grad_input, **parameter_gradients(k, t, normalized)}


def compensated(k: Numbers, t: Terms) -> Value:
    """Return x - mean as (x - h) - l, where h + l is the mean: what h lacks of it is not lost."""
    high, low = k.mean_parts(t.x)
    return (t.x - high) - low


def compensated_forward(k: Numbers, t: Terms) -> Value:
    """Return ((x - h) - l) * rstd * weight + bias."""
    _, rstd = k.moments(t.x)
    return affine(compensated(k, t) * rstd, t)


def compensated_backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return the canonical gradients with xhat = ((x - h) - l) * rstd."""
    _, rstd = k.saved_moments(t.x)
    return _gradients(k, t, compensated(k, t) * rstd, rstd)


def scale_shift_forward(k: Numbers, t: Terms) -> Value:
    """Return (x * rstd - mean * rstd) * weight + bias."""
    mean, rstd = k.moments(t.x)
    shift = k.share(mean * rstd, "mean * rstd", product=True)
    return affine(t.x * rstd - shift, t)


def scale_shift_backward(k: Numbers, t: Terms, held: str | None = None) -> Mapping[str, Value]:
    """Return a * g + b * x + c with row scalars a, b, c, and xhat as a * x - a * mean.

    a = rstd, b = (sum(g) * mean - sum(g * x)) * a**3 / N, c = -b * mean - sum(g) * a / N.
    """
    mean, a = k.saved_moments(t.x)
    shift = k.share(a * mean, "a * mean", product=True)
    normalized = a * t.x - shift
    if t.weight is None:
        g, ds_terms = t.grad_output, t.grad_output * t.x
    else:
        g, ds_terms = t.grad_output * t.weight, t.grad_output * t.x * t.weight
    ds, db = k.share(k.sum(ds_terms), "ds"), k.share(k.sum(g), "db")
    scale = k.constant(1.0) / k.count()
    b = k.share((db * mean - ds) * a * a * a * scale, "b", product=True)
    c = k.share(-b * mean - db * a * scale, "c")
    ag = a * t.grad_output if t.weight is None else a * t.grad_output * t.weight
    grad_input = ag + b * t.x + c
    return {"grad_input": grad_input, **parameter_gradients(k, t, normalized, held)}


def torch_cpu_backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return the scale-shift form with sums over rows held in the dtype of weight, as PyTorch on the CPU."""
    return scale_shift_backward(k, t, held="weight" if t.weight is not None else "bias")


def through_variance(k: Numbers, g: Value, d: Value, rstd: Value) -> Iterator[Value]:
    """Yield half the slope of grad_input in d that autograd takes back through the variance of each row.

    First where the forward pass multiplies by (var + eps)**-1/2, then where it divides by sqrt(var + eps).
    """
    half, cube = k.constant(-0.5), rstd * rstd * rstd
    grad_rstd = k.share(k.sum(g * d), "grad_rstd")
    yield k.share(half * grad_rstd * cube / k.count(), "slope", product=True)
    grad_std = k.share(k.sum(g * (d * rstd * rstd)), "grad_std")
    yield k.share(half * grad_std * rstd / k.count(), "slope", product=True)


def autograd_parts(k: Numbers, t: Terms) -> Iterator[tuple[Value, Value]]:
    """Yield both summands of g * rstd + 2 * slope * d less its mean, d = x - mean, as autograd makes them.

    slope = -1/2 sum(g * d) * rstd**3 / N (see `through_variance`). Squares of d are products of d with itself
    (slope * d is added twice) or powers; the mean is taken back from all of it, from each of its two uses,
    or, where torch.var has taken back its own, from g * rstd alone.
    """
    mean, rstd = k.saved_moments(t.x)
    d = t.x - mean
    g = t.grad_output if t.weight is None else t.grad_output * t.weight
    direct = g * rstd
    for slope in through_variance(k, g, d, rstd):
        once = slope * d
        twice = k.constant(2.0) * once
        both, added = direct + twice, direct + once + once
        yield both, -k.mean(both)
        yield added, -k.mean(added)
        yield both, -(k.mean(direct) + k.mean(twice))
        yield direct - k.mean(direct), twice


def autograd_backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return the chain rule op by op, as autograd does: the bound is the largest of the ways to add it up."""
    mean, rstd = k.saved_moments(t.x)
    ways = [first + second for first, second in autograd_parts(k, t)]
    return {"grad_input": k.either(*ways), **parameter_gradients(k, t, (t.x - mean) * rstd)}


CANONICAL = Form(name="canonical", forward=canonical_forward, backward=canonical_backward)
AUTOGRAD = Form(name="autograd", forward=canonical_forward, backward=autograd_backward, parts=autograd_parts)
FORMS = {
    form.name: form
    for form in (
        CANONICAL,
        AUTOGRAD,
        Form(
            name="compensated",
            forward=compensated_forward,
            backward=compensated_backward,
            reads_parts=True,
        ),
        Form(name="scale_shift", forward=scale_shift_forward, backward=scale_shift_backward),
        Form(name="torch_cpu", forward=canonical_forward, backward=torch_cpu_backward),
        Form(name="torch_cpu_half", forward=scale_shift_forward, backward=torch_cpu_backward),
    )
}

OP = Op(
    name="layer_norm",
    summary="(x - mean) / sqrt(var + eps) * weight + bias over the trailing dimensions",
    tensors=TENSORS,
    optional=("weight", "bias"),
    differentiable=("input", "weight", "bias"),
    variants=trailing_dimensions.VARIANTS,
    forms=FORMS,
    shapes=partial(trailing_dimensions.shapes, tensors=TENSORS),
    canonical=trailing_dimensions.canonical,
    problem=partial(trailing_dimensions.problem, centred=True),
    exact=trailing_dimensions.exact,
    bounds=rows_bounds,
    expected=results.expected,
    extents=trailing_dimensions.extents,
    links=trailing_dimensions.links,
    special=special_values.centred,
    shift_invariant=True,
    scale_invariant=True,
)
