"""log_softmax: y = (x - max) - log(sum(exp(x - max))) over one dimension.

Source: torch.nn.functional.log_softmax; the error of the sum is T11 of docs/explanation/bounds.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from verifier.arithmetic.abstract_number import Form, Numbers, Terms, Value
from verifier.ops.rows import any_dimension
from verifier.ops.rows.softmax_ops import forward_op


def canonical_forward(k: Numbers, t: Terms) -> Value:
    """Return (x - max) - log(sum(exp(x - max))); the other order would lose small differences."""
    moved = any_dimension.shifted(k, t)
    return moved - k.log(k.sum(k.exp(moved)))


def online_forward(k: Numbers, t: Terms) -> Value:
    """Return the canonical form with a sum that is made in one sweep, rescaled as the maximum grows."""
    return any_dimension.shifted(k, t) - k.log(k.online_sum(t.x))


def logsumexp_forward(k: Numbers, t: Terms) -> Value:
    """Return x - (max + log(sum(exp(x - max)))), whose error grows with |max|: the subtrahend is rounded."""
    return t.x - (k.maximum(t.x) + k.log(k.sum(k.exp(any_dimension.shifted(k, t)))))


def online_logsumexp_forward(k: Numbers, t: Terms) -> Value:
    """Return the same with a sum that is made in one sweep, rescaled as the maximum grows."""
    return t.x - (k.maximum(t.x) + k.log(k.online_sum(t.x)))


def torch_cpu_forward(k: Numbers, t: Terms) -> Value:
    """Return the canonical form with sum and logarithm held in the input's dtype, as PyTorch on the CPU."""
    moved = any_dimension.shifted(k, t)
    total = k.cast(k.sum(k.exp(moved)), "input")
    return moved - k.cast(k.log(total), "input")


def saved_backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return grad_output - exp(y) * sum(grad_output), y as it was stored."""
    return {"grad_input": t.grad_output - k.exp(any_dimension.saved(k, t)) * k.sum(t.grad_output)}


def recomputed_backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return the same with y as it was computed, never stored in the output's dtype."""
    return {"grad_input": t.grad_output - k.exp(t.output) * k.sum(t.grad_output)}


FORMS = {
    form.name: form
    for form in (
        Form(name="canonical", forward=canonical_forward, backward=saved_backward),
        Form(name="recomputed", forward=canonical_forward, backward=recomputed_backward),
        Form(name="online", forward=online_forward, backward=saved_backward),
        Form(name="online_recomputed", forward=online_forward, backward=recomputed_backward),
        Form(name="logsumexp", forward=logsumexp_forward, backward=saved_backward),
        Form(name="logsumexp_recomputed", forward=logsumexp_forward, backward=recomputed_backward),
        Form(name="online_logsumexp", forward=online_logsumexp_forward, backward=saved_backward),
        Form(
            name="online_logsumexp_recomputed", forward=online_logsumexp_forward, backward=recomputed_backward
        ),
        Form(name="torch_cpu", forward=torch_cpu_forward, backward=saved_backward),
    )
}

OP = forward_op(
    name="log_softmax",
    summary="(x - max) - log(sum(exp(x - max))) over one dimension",
    forms=FORMS,
    logarithm=True,
)
