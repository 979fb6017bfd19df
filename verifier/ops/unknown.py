"""unknown: a row-wise function of the user's own, whose meaning is the subject's `specification`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from verifier.arithmetic import Array
from verifier.case import Case
from verifier.numbers import Form, Numbers, Terms, Value
from verifier.ops import Expected, Op, Shapes, Tensors, trailing
from verifier.subjects import Subject

PARAMETERS = ("weight", "bias")
TENSORS = ("input", "weight", "bias", "residual", "gate")

_NO_BOUND = (
    "a specification of the subject's own claims no algorithm, so no theorem bounds its rounding errors; "
    "running_bound judges the results by the roundings of the code that ran"
)
INAPPLICABLE = {
    **dict.fromkeys(("forward_error", "gradient", "context", "saved_statistics"), _NO_BOUND),
    **dict.fromkeys(("layouts", "large_offsets"), f"{_NO_BOUND}, in every layout"),
    "gradgradcheck": "second derivatives of a specification of the subject's own are not derived",
    "special_values": "a specification of the subject's own does not say what NaN and infinities give",
    "metamorphic": "of a specification of the subject's own no identity is known",
    "claim": "a specification of the subject's own claims no algorithm",
}
"""Checks that need more than a specification, and why."""


def shapes(rows: int, columns: int, variant: int) -> Shapes | None:
    """Lay out rows as norms over trailing dimensions have them; residual and gate are like the input."""
    found = trailing.shapes(rows, columns, variant, tensors=("input", "weight", "bias"))
    if found is None:
        return None
    like = dict.fromkeys(("residual", "gate"), found.tensors["input"])
    return Shapes(tensors={**found.tensors, **like}, scalars=found.scalars)


def canonical(case: Case, name: str, array: Array) -> Array:
    """Bring an argument, result or gradient into canonical rows; a further result may be one number a row."""
    further = name != "output" and name not in TENSORS and not name.startswith("grad_")
    if further and array.size == case.rows:
        return array.reshape(case.rows)
    return trailing.canonical(case, name, array)


def expected(case: Case, subject: Subject) -> Mapping[str, Expected]:
    """Return the shape and dtype of output and gradients; what else is returned may have any."""
    x = case.given["input"]
    results = {"output": Expected(shape=tuple(x.shape), dtype=x.dtype)}
    results |= {
        f"grad_{name}": Expected(shape=tuple(t.shape), dtype=t.dtype)
        for name, t in case.given.items()
        if name in TENSORS and name in subject.signature
    }
    return results


def links(tensors: Tensors, scalars: Mapping[str, Any]) -> Mapping[str, list[tuple[str, int]]]:
    """Name the axes that shrink together; residual and gate shrink with the input."""
    like = [name for name in ("residual", "gate") if tensors.get(name) is not None]
    return {
        axis: [*places, *((name, k) for n, k in places if n == "input" for name in like)]
        for axis, places in trailing.links(tensors, scalars).items()
    }


def complete(
    tensors: Tensors, scalars: Mapping[str, Any], subject: Subject
) -> dict[str, torch.Tensor | None]:
    """Leave out what the subject does not take."""
    del scalars
    taken = {"input", "grad_output", *subject.signature}
    return {name: tensor for name, tensor in tensors.items() if name in taken}


def _no_problem(case: Case) -> None:
    """Pose nothing to the oracle of norms: `verifier.specification.own` encloses the results."""
    del case


def _not_a_form(k: Numbers, t: Terms) -> Value:
    """Compute what the subject's specification says."""
    raise NotImplementedError("the specification of op 'unknown' is the subject's, not a form of the op")


def _no_bounds(*_: Any) -> Mapping[str, Any]:
    return {}


OP = Op(
    name="unknown",
    summary="A function of rows whose exact meaning is the subject's own `specification`",
    tensors=TENSORS,
    optional=("weight", "bias", "residual", "gate"),
    differentiable=TENSORS,
    parameters=PARAMETERS,
    variants=trailing.VARIANTS,
    forms={"specification": Form(name="specification", forward=_not_a_form, backward=_not_a_form)},
    shapes=shapes,
    canonical=canonical,
    problem=_no_problem,
    exact=_no_bounds,
    bounds=_no_bounds,
    expected=expected,
    extents=trailing.extents,
    links=links,
    complete=complete,
    needs_variance=False,
    own=True,
    inapplicable=INAPPLICABLE,
)
