"""Canonical rows of softmax and log-softmax: any one dimension of a tensor, and bounds by T11."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

from verifier.arithmetic.abstract_number import Form, Numbers, Terms, Value
from verifier.arithmetic.formats import Array
from verifier.bounds.affine import AffineNumbers, bound_of
from verifier.bounds.affine_value import Affine
from verifier.ops import Bounded, Setting, Shapes, Solved, Tensors
from verifier.ops.rows.compose_bounds import case_array, combined_reasons
from verifier.ops.rows.results import stored
from verifier.ops.rows.two_factors import two_factors
from verifier.oracle.enclosure import Enclosure
from verifier.oracle.problem import SoftmaxSolution
from verifier.oracle.softmax.problem import SoftmaxProblem
from verifier.records.case import Case, Extents, Scalars
from verifier.records.subject import Claim, Subject

VARIANTS = 7
"""Last of two dimensions; first of two; middle of three; the only one (one row); third of four; second of
four, as channels of images are; last of three."""

SAVED = "saved output"
"""Role of the output that the backward pass reads: stored in the output's dtype, or given as it is."""


def shapes(rows: int, columns: int, variant: int, *, tensors: tuple[str, ...]) -> Shapes | None:
    """Lay out rows and columns with the softmax over one dimension."""
    before, after = two_factors(rows)
    shape, dim = (
        ((rows, columns), -1),
        ((columns, rows), 0),
        ((before, columns, after), 1),
        ((columns,), 0),
        ((1, before, columns, after), -2),
        ((1, columns, before, after), 1),
        ((before, after, columns), 2),
    )[variant]
    if variant == 3 and rows != 1:
        return None
    return Shapes(tensors=dict.fromkeys((*tensors, "grad_output"), shape), scalars={"dim": dim})


def takes(subject: Subject, shapes: Shapes) -> bool:
    """Return whether the subject has room for these shapes: without `dim` it takes the last one."""
    dim = shapes.scalars["dim"] % len(shapes.tensors["input"])
    return "dim" in subject.signature or dim == len(shapes.tensors["input"]) - 1


def canonical(extents: Extents, _name: str, array: Array) -> Array:
    """Bring an argument, output or gradient into canonical rows."""
    return np.moveaxis(array, extents.scalars["dim"], -1).reshape(extents.rows, extents.columns)


def extents(tensors: Tensors, scalars: Scalars) -> tuple[int, int, Scalars]:
    """Read rows and columns off the tensors."""
    x = tensors["input"]
    assert x is not None
    dim = scalars["dim"] % x.dim()
    rows = math.prod(extent for axis, extent in enumerate(x.shape) if axis != dim)
    return rows, x.shape[dim], scalars


def links(tensors: Tensors, _scalars: Scalars) -> Mapping[str, list[tuple[str, int]]]:
    """Name the axes that shrink together: each axis of all tensors, which have one shape."""
    x = tensors["input"]
    assert x is not None
    names = [name for name in ("input", "output", "grad_output") if tensors.get(name) is not None]
    return {f"axis {axis}": [(name, axis) for name in names] for axis in range(x.dim())}


def complete_backward(
    tensors: Tensors, scalars: Scalars, _subject: Subject, *, logarithm: bool
) -> dict[str, torch.Tensor | None]:
    """Add the output as a forward pass would have stored it; any numbers would do, they are given."""
    done = dict(tensors)
    x = done["input"]
    assert x is not None
    function = torch.log_softmax if logarithm else torch.softmax
    done["output"] = stored(function(x.double(), scalars["dim"]), x.dtype)
    return done


def _rows(case: Case, name: str) -> Array | None:
    array = case_array(case, name)
    return None if array is None else canonical(case, name, array)


def problem(case: Case, *, logarithm: bool) -> SoftmaxProblem:
    """Pose a forward op with its VJP to the oracle."""
    return SoftmaxProblem(
        input=_rows(case, "input"), grad_output=_rows(case, "grad_output"), logarithm=logarithm
    )


def given_problem(case: Case, *, logarithm: bool) -> SoftmaxProblem:
    """Pose a raw backward op, whose output is an exact input, to the oracle."""
    return SoftmaxProblem(
        output=_rows(case, "output"), grad_output=_rows(case, "grad_output"), logarithm=logarithm
    )


def exact(solution: SoftmaxSolution) -> Mapping[str, Enclosure]:
    """Name the exact results."""
    found = {"output": solution.output, "grad_input": solution.grad_input}
    return {name: value for name, value in found.items() if value is not None}


def shifted(k: Numbers, t: Terms) -> Value:
    """Return x - max(x): at most 0, so that no exponential overflows."""
    return t.x - k.maximum(t.x)


def saved(k: Numbers, t: Terms) -> Value:
    """Return the output as the backward pass reads it back."""
    return k.cast(t.output, SAVED)


def bounds(
    solved: Solved[SoftmaxProblem, SoftmaxSolution], claim: Claim, form: Form, setting: Setting
) -> Mapping[str, Bounded]:
    """Bound output and gradient by the affine interpreter, which yields T11."""
    case, finite = solved.case, solved.solution.finite
    if case.rows == 0 or case.columns == 0:
        return {}
    posed = solved.problem
    numbers = numbers_of(case, claim, setting)
    numbers.judged = finite[:, None]
    results = {}
    with np.errstate(all="ignore"):
        if posed.input is not None:
            absent = np.asarray(posed.input == -np.inf)
            numbers.absent = absent if absent.any() else None
            x = numbers.read(_readable(posed.input, absent), "input")
            output = form.forward(numbers, Terms(x=x))
            results["output"] = bounded(numbers.cast(output, "output"), finite)
        else:
            assert posed.output is not None
            numbers.dtypes = {**numbers.dtypes, SAVED: setting.arithmetic.format.name}
            x = output = numbers.read(np.where(np.isfinite(posed.output), posed.output, 0.0), "output")
        if posed.grad_output is not None:
            numbers.row_tree = setting.trees.row_gradients
            terms = Terms(x=x, output=output, grad_output=numbers.read(posed.grad_output, "grad_output"))
            gradient = form.backward(numbers, terms)["grad_input"]
            results["grad_input"] = bounded(numbers.cast(gradient, "input"), finite)
    return results


def numbers_of(case: Case, claim: Claim, setting: Setting) -> AffineNumbers:
    """Return the numbers that bound a softmax of a case."""
    dtypes = {name: str(t.dtype).removeprefix("torch.") for name, t in case.given.items()}
    return AffineNumbers(
        arithmetic=setting.arithmetic,
        rows=case.rows,
        columns=case.columns,
        row_tree=setting.trees.statistics,
        column_tree=setting.trees.columns,
        divide_by_n=claim.divide_by_n,
        contraction=claim.mean_contraction,
        dtypes={**dtypes, "output": dtypes["input"], SAVED: dtypes["input"]},
    )


def _readable(values: Array, absent: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Array:
    """Return rows without infinities: what is absent counts as the largest; rows without a value are zero."""
    kept = np.where(np.isfinite(values), values, -np.inf)
    top = kept.max(axis=1, keepdims=True)
    kept = np.where(absent, top, np.where(np.isfinite(values), values, 0.0))
    return np.where(np.isfinite(kept), kept, 0.0)


def bounded(
    value: Affine,
    finite: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
    why: str = "a row is not finite",
) -> Bounded:
    """Return the bound of a result of each element, proved in rows that have an exact answer."""
    bound = np.broadcast_to(bound_of(value), (value.numbers.rows, value.numbers.columns))
    reasons = combined_reasons([(why, not bool(finite.all()))], value.reasons, bound[finite])
    return Bounded(bound=bound, covered=finite[:, None] & np.isfinite(bound), reasons=reasons)
