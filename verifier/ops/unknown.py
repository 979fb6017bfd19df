"""unknown: a row-wise function of the user's own, whose meaning is the subject's `specification`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from verifier.arithmetic.abstract_number import Form, Numbers, Terms, Value
from verifier.arithmetic.formats import Array
from verifier.ops import Bounded, Expected, Op, Tensors
from verifier.ops.rows import trailing_dimensions
from verifier.ops.rows.results import like
from verifier.oracle.enclosure import Enclosure
from verifier.records.case import Case, Extents, Scalars
from verifier.records.subject import Subject

PARAMETERS = ("weight", "bias")
LIKE_THE_INPUT = ("residual", "gate")
TENSORS = ("input", *PARAMETERS, *LIKE_THE_INPUT)

NO_BOUND = (
    "a specification of the subject's own claims no algorithm, so no theorem bounds its rounding errors; "
    "running_bound judges the results by the roundings of the code that ran"
)
"""Why checks that compare with a theorem do not apply."""


def canonical(extents: Extents, name: str, array: Array) -> Array:
    """Bring an argument, result or gradient into canonical rows; a further result may be one number a row."""
    further = name != "output" and name not in TENSORS and not name.startswith("grad_")
    if further and array.size == extents.rows:
        return array.reshape(extents.rows)
    return trailing_dimensions.canonical(extents, name, array)


def expected(case: Case, subject: Subject) -> Mapping[str, Expected]:
    """Return the shape and dtype of output and gradients; what else is returned may have any."""
    taken = [name for name in case.given if name in TENSORS and name in subject.signature]
    return {"output": like(case.given["input"]), **{f"grad_{name}": like(case.given[name]) for name in taken}}


def complete(tensors: Tensors, _scalars: Scalars, subject: Subject) -> dict[str, torch.Tensor | None]:
    """Leave out what the subject does not take."""
    taken = {"input", "grad_output", *subject.signature}
    return {name: tensor for name, tensor in tensors.items() if name in taken}


def _no_problem(_case: Case) -> None:
    """Pose nothing to the oracle of norms: `verifier.ops.specification.enclosures` encloses the results."""


def _not_a_form(k: Numbers, t: Terms) -> Value:
    """Compute what the subject's specification says."""
    raise NotImplementedError("the specification of op 'unknown' is the subject's, not a form of the op")


def _no_results(_solution: object) -> Mapping[str, Enclosure]:
    return {}


def _no_bounds(*_: object) -> Mapping[str, Bounded]:
    return {}


OP = Op(
    name="unknown",
    summary="A function of rows whose exact meaning is the subject's own `specification`",
    tensors=TENSORS,
    optional=("weight", "bias", "residual", "gate"),
    differentiable=TENSORS,
    parameters=PARAMETERS,
    variants=trailing_dimensions.VARIANTS,
    forms={"specification": Form(name="specification", forward=_not_a_form, backward=_not_a_form)},
    shapes=partial(trailing_dimensions.shapes, tensors=("input", *PARAMETERS), like=LIKE_THE_INPUT),
    canonical=canonical,
    problem=_no_problem,
    exact=_no_results,
    bounds=_no_bounds,
    expected=expected,
    extents=trailing_dimensions.extents,
    links=partial(trailing_dimensions.links, like=LIKE_THE_INPUT),
    complete=complete,
    needs_variance=False,
    own=True,
)
