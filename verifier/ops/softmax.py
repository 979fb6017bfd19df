"""softmax: y = exp(x - max) / sum(exp(x - max)) over one dimension.

Source: torch.nn.functional.softmax; the error of the shifted form is T11 of docs/explanation/bounds.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from verifier.arithmetic.abstract_number import Form, Numbers, Terms, Value
from verifier.ops.rows import any_dimension
from verifier.ops.rows.softmax_ops import forward_op


def canonical_forward(k: Numbers, t: Terms) -> Value:
    """Return exp(x - max) divided by the sum of it."""
    power = k.exp(any_dimension.shifted(k, t))
    return power / k.sum(power)


def reciprocal_forward(k: Numbers, t: Terms) -> Value:
    """Return exp(x - max) times the reciprocal of the sum."""
    power = k.exp(any_dimension.shifted(k, t))
    return power * (k.constant(1.0) / k.sum(power))


def online_forward(k: Numbers, t: Terms) -> Value:
    """Return the canonical quotient with a sum that is made in one sweep, rescaled as the maximum grows."""
    return k.exp(any_dimension.shifted(k, t)) / k.online_sum(t.x)


def online_reciprocal_forward(k: Numbers, t: Terms) -> Value:
    """Return exp(x - max) times the reciprocal of the online sum."""
    return k.exp(any_dimension.shifted(k, t)) * (k.constant(1.0) / k.online_sum(t.x))


def folded_powers(k: Numbers, t: Terms) -> Value:
    """Return exp(x - max) as 2**(x * l - max * l), l = log2(e), whose error grows with |x| (T11, folded)."""
    scale = k.log2_e()
    return k.exp2(t.x * scale - k.maximum(t.x) * scale)


def folded_forward(k: Numbers, t: Terms) -> Value:
    """Return 2**(x * l - max * l), l = log2(e), divided by the sum of it or times its reciprocal."""
    power = folded_powers(k, t)
    total = k.share(k.sum(power), "sum of powers")
    return k.either(power / total, power * (k.constant(1.0) / total))


def torch_cpu_forward(k: Numbers, t: Terms) -> Value:
    """Return what PyTorch computes on the CPU: with half inputs the exponentials may pass through half.

    That happens to softmaxes over another than the last dimension, where less than a vector is left.
    """
    power = k.exp(any_dimension.shifted(k, t))
    total = k.sum(power)
    return k.either(power * (k.constant(1.0) / total), k.cast(power, "input") / total)


def saved_backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return y * (grad_output - sum(grad_output * y)), y as it was stored."""
    y = any_dimension.saved(k, t)
    return {"grad_input": y * (t.grad_output - k.sum(t.grad_output * y))}


def recomputed_backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return the same with y as it was computed, never stored in the output's dtype."""
    y: Value = t.output
    return {"grad_input": y * (t.grad_output - k.sum(t.grad_output * y))}


def distributed_backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return y * grad_output - y * sum(grad_output * y), y as it was stored, whose difference may cancel."""
    y = any_dimension.saved(k, t)
    return {"grad_input": y * t.grad_output - y * k.sum(t.grad_output * y)}


FORMS = {
    form.name: form
    for form in (
        Form(name="canonical", forward=canonical_forward, backward=saved_backward),
        Form(name="recomputed", forward=canonical_forward, backward=recomputed_backward),
        Form(name="distributed", forward=canonical_forward, backward=distributed_backward),
        Form(name="reciprocal", forward=reciprocal_forward, backward=saved_backward),
        Form(name="reciprocal_recomputed", forward=reciprocal_forward, backward=recomputed_backward),
        Form(name="online", forward=online_forward, backward=saved_backward),
        Form(name="online_recomputed", forward=online_forward, backward=recomputed_backward),
        Form(name="online_reciprocal", forward=online_reciprocal_forward, backward=saved_backward),
        Form(name="folded", forward=folded_forward, backward=saved_backward),
        Form(name="folded_recomputed", forward=folded_forward, backward=recomputed_backward),
        Form(name="torch_cpu", forward=torch_cpu_forward, backward=saved_backward),
    )
}

OP = forward_op(
    name="softmax",
    summary="exp(x - max) / sum(exp(x - max)) over one dimension",
    forms=FORMS,
    logarithm=False,
)
