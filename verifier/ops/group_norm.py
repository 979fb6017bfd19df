"""group_norm: y = (x - mean) / sqrt(var + eps) * weight + bias over groups of channels of each sample.

Source: Wu, He 2018; torch.nn.functional.group_norm (biased variance).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from verifier.arithmetic.abstract_number import Form, Numbers, Terms, Value
from verifier.ops import Op, special_values
from verifier.ops.layer_norm import AUTOGRAD, CANONICAL, scale_shift_backward
from verifier.ops.rows import groups, results, trailing_dimensions

TENSORS = ("input", "weight", "bias")


def scale_shift_forward(k: Numbers, t: Terms) -> Value:
    """Return x * scale + shift of each channel, scale = rstd * weight, shift = bias - scale * mean.

    Without weight and bias: (x - mean) * rstd. That is what PyTorch computes on the CPU.
    """
    mean, rstd = k.moments(t.x)
    if t.weight is None and t.bias is None:
        return (t.x - mean) * rstd
    scale = rstd if t.weight is None else rstd * t.weight
    shift = -(scale * mean) if t.bias is None else t.bias - scale * mean
    return t.x * scale + shift


def channel_sums_backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return a * g + b * x + c, and grad_weight from sums of grad_output * x and of grad_output.

    grad_weight = sum over samples of (sum(grad_output * x) - sum(grad_output) * mean) * rstd: the
    sums over the positions of a channel come first, so that x is not centred before it is summed.
    """
    gradients = dict(scale_shift_backward(k, t))
    if t.weight is not None:
        mean, rstd = k.saved_moments(t.x)
        raw = k.parameter_sum(t.grad_output * t.x * rstd)
        gradients["grad_weight"] = raw - k.parameter_sum(t.grad_output * mean * rstd)
    return gradients


FORMS = {
    form.name: form
    for form in (
        CANONICAL,
        AUTOGRAD,
        Form(name="torch_cpu", forward=scale_shift_forward, backward=channel_sums_backward),
    )
}

OP = Op(
    name="group_norm",
    summary="(x - mean) / sqrt(var + eps) * weight + bias over groups of channels",
    tensors=TENSORS,
    optional=("weight", "bias"),
    differentiable=("input", "weight", "bias"),
    variants=groups.VARIANTS,
    forms=FORMS,
    shapes=partial(groups.shapes, tensors=TENSORS),
    takes=groups.takes,
    canonical=groups.canonical,
    problem=groups.problem,
    exact=trailing_dimensions.exact,
    further=groups.further,
    bounds=groups.bounds,
    expected=results.expected,
    extents=groups.extents,
    at_integers=groups.at_integers,
    links=groups.links,
    special=special_values.centred,
    shift_invariant=True,
    scale_invariant=True,
)
