"""batch_norm: y = (x - mean) / sqrt(var + eps) * weight + bias over samples and positions of a channel.

Training takes the batch's own statistics (biased variance) and moves the running ones, the variance
towards the unbiased one; evaluation takes the running ones as constants.
Source: Ioffe, Szegedy 2015; torch.nn.functional.batch_norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from verifier.arithmetic.abstract_number import Form, Numbers, Terms, Value
from verifier.ops import Op, special_values
from verifier.ops.layer_norm import AUTOGRAD, CANONICAL
from verifier.ops.rows import channels, trailing_dimensions
from verifier.ops.running_statistics import weighted_in_steps

TENSORS = ("input", "running_mean", "running_var", "weight", "bias")


def torch_cpu_forward(k: Numbers, t: Terms) -> Value:
    """Return x * scale + shift, scale = rstd * weight, shift = bias - mean * scale, or the canonical form.

    PyTorch on the CPU takes the first where all tensors are contiguous. Elsewhere it takes the second,
    and with half inputs rounds every step of it to half; in evaluation those to rstd as well.
    """
    mean, rstd = k.moments(t.x)
    scale = rstd if t.weight is None else rstd * t.weight
    shift = -(mean * scale) if t.bias is None else t.bias - mean * scale
    mean, rstd = k.stepped_moments(t.x)
    value = k.cast(k.cast(t.x - mean, "input") * rstd, "input")
    value = value if t.weight is None else k.cast(value * t.weight, "input")
    return k.either(t.x * scale + shift, value if t.bias is None else value + t.bias)


def torch_cpu_backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return (g - mean(g) - (x - mean) * slope) * rstd * weight, slope = sum((x - mean) * g) * rstd**2 / N.

    g is grad_output; grad_weight = sum((x - mean) * g) * rstd. With half inputs that are not contiguous
    PyTorch on the CPU rounds every step but the sums to half.
    """
    mean, rstd = k.saved_moments(t.x)
    g, centred = t.grad_output, k.cast(t.x - mean, "input")
    products = k.cast(centred * g, "input")
    slope = k.cast(k.cast(k.cast(k.sum(products), "input") * rstd, "input") * rstd, "input") / k.count()
    slope = k.share(k.cast(slope, "input"), "slope")
    average = k.share(k.cast(k.cast(k.sum(g), "input") / k.count(), "input"), "average")
    moved = k.cast(g - average, "input") - k.cast(centred * slope, "input")
    moved = k.cast(k.cast(moved, "input") * rstd, "input")
    gradients = {"grad_input": moved if t.weight is None else moved * t.weight}
    return {**gradients, **_parameter_gradients(k, t, products, rstd)}


def torch_cpu_evaluation(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return grad_output * rstd * weight, and grad_weight as sum((x - mean) * grad_output) * rstd.

    With half inputs that are not contiguous the reciprocal root itself is rounded to half.
    """
    mean, rstd = k.saved_moments(t.x)
    rstd = k.cast(rstd, "input")
    products = k.cast(k.cast(t.x - mean, "input") * t.grad_output, "input")
    moved = k.cast(t.grad_output * rstd, "input")
    gradients = {"grad_input": moved if t.weight is None else moved * t.weight}
    return {**gradients, **_parameter_gradients(k, t, products, rstd)}


def _parameter_gradients(k: Numbers, t: Terms, products: Value, rstd: Value) -> dict[str, Value]:
    gradients = {}
    if t.weight is not None:
        # Each entry belongs to one row: rstd may be multiplied before the sum or after it.
        gradients["grad_weight"] = k.parameter_sum(products * rstd)
    if t.bias is not None:
        gradients["grad_bias"] = k.parameter_sum(t.grad_output)
    return gradients


FORMS = {
    form.name: form
    for form in (
        CANONICAL,
        AUTOGRAD,
        Form(
            name="torch_cpu",
            forward=torch_cpu_forward,
            backward=torch_cpu_backward,
            evaluation=torch_cpu_evaluation,
            update=weighted_in_steps,
            reads_saved=True,
        ),
    )
}

OP = Op(
    name="batch_norm",
    summary="(x - mean) / sqrt(var + eps) * weight + bias over samples and positions of a channel",
    tensors=TENSORS,
    optional=("running_mean", "running_var", "weight", "bias"),
    differentiable=("input", "weight", "bias"),
    outputs=("output", "running_mean", "running_var"),
    variants=channels.VARIANTS,
    forms=FORMS,
    shapes=partial(channels.shapes, tensors=TENSORS),
    takes=channels.takes,
    canonical=channels.canonical,
    problem=channels.problem,
    exact=trailing_dimensions.exact,
    further=channels.further,
    undefined=channels.undefined,
    bounds=channels.bounds,
    expected=channels.expected,
    extents=channels.extents,
    links=channels.links,
    complete=channels.complete,
    special=special_values.centred,
    shift_invariant=True,
    scale_invariant=True,
)
