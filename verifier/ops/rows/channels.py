"""Canonical rows of batch_norm: a row is one channel over all samples and positions."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

from verifier.arithmetic.abstract_number import Form
from verifier.arithmetic.formats import Array
from verifier.ops import Bounded, Expected, Setting, Shapes, Tensors
from verifier.ops import running_statistics as moved
from verifier.ops.rows.compose_bounds import Composer, RowsSolved, case_array
from verifier.ops.rows.results import expected as output_and_gradients
from verifier.ops.rows.results import like, statistics, stored, with_saved_statistics
from verifier.ops.rows.two_factors import two_factors
from verifier.oracle.enclosure import Enclosure
from verifier.oracle.problem import RowSolution
from verifier.oracle.rows.problem import RowProblem
from verifier.records.case import Case, Extents, Scalars
from verifier.records.subject import Claim, Subject

VARIANTS = 8
"""Training: (N, C); (N, C, L); (N, C, H, W). Evaluation: (N, C); (N, C, H, W). Training again: without
running statistics; with another momentum; (N, C, D, H, W)."""

_EVALUATION = (3, 4)
_WITHOUT_RUNNING = 5
_MOMENTA = {1: 0.0, 2: 1.0, 6: 0.25}
"""Momenta other than PyTorch's default 0.1: one that moves nothing, one that forgets, one that is exact."""
RUNNING = ("running_mean", "running_var")
_VECTORS = (*RUNNING, "weight", "bias", "grad_weight", "grad_bias", "mean", "rstd")


def shapes(rows: int, columns: int, variant: int, *, tensors: tuple[str, ...]) -> Shapes:
    """Lay out rows as channels, columns as samples and positions."""
    samples, length = two_factors(columns)
    full: tuple[int, ...] = (columns, rows)
    if variant in {1, 5, 6}:
        full = (samples, rows, length)
    elif variant in {2, 4}:
        full = (samples, rows, *two_factors(length))
    elif variant == 7:
        depth, area = two_factors(length)
        full = (samples, rows, depth, *two_factors(area))
    of = dict.fromkeys(("input", "grad_output"), full) | dict.fromkeys(_VECTORS, (rows,))
    absent = RUNNING if variant == _WITHOUT_RUNNING else ()
    return Shapes(
        tensors={name: of[name] for name in (*tensors, "grad_output") if name not in absent},
        scalars={"training": variant not in _EVALUATION, "momentum": _MOMENTA.get(variant, 0.1)},
    )


def takes(subject: Subject, shapes: Shapes) -> bool:
    """Return whether the subject has room for these shapes.

    Without `training` it evaluates if it takes running statistics, and else trains; without `momentum`
    it has PyTorch's default.
    """
    known, running = subject.signature, "running_mean" in shapes.tensors
    trains = shapes.scalars["training"]
    if "training" not in known and trains == ("running_mean" in known):
        return False
    if running and "running_mean" not in known and not trains:
        return False
    return "momentum" in known or shapes.scalars["momentum"] == 0.1


def canonical(extents: Extents, name: str, array: Array) -> Array:
    """Bring an argument, output, statistic or gradient into canonical rows."""
    if name in _VECTORS:
        return array.reshape(extents.rows)
    return np.moveaxis(array, 1, 0).reshape(extents.rows, extents.columns)


def _operands(case: Case) -> dict[str, Array | None]:
    found: dict[str, Array | None] = {}
    for name in ("input", "grad_output", *RUNNING, "weight", "bias", "mean", "rstd"):
        array = case_array(case, name)
        rows = None if array is None else canonical(case, name, array)
        found[name] = rows if rows is None or rows.ndim == 2 else rows.reshape(-1, 1)
    return found


def problem(case: Case) -> RowProblem:
    """Pose the forward op with its VJP to the oracle."""
    operands = _operands(case)
    # Of no elements nothing is asked of running statistics.
    evaluates = not case.scalars["training"] and case.elements > 0
    return RowProblem(
        input=operands["input"],
        eps=case.eps,
        weight=operands["weight"],
        bias=operands["bias"],
        grad_output=operands["grad_output"],
        parameter="rows",
        mean=operands["running_mean"] if evaluates else None,
        variance=operands["running_var"] if evaluates else None,
    )


def given_problem(case: Case) -> RowProblem:
    """Pose the raw backward op of training, whose statistics are exact inputs, to the oracle."""
    operands = _operands(case)
    return RowProblem(
        input=operands["input"],
        eps=case.eps,
        weight=operands["weight"],
        grad_output=operands["grad_output"],
        parameter="rows",
        mean=operands["mean"] if case.elements else None,
        rstd=operands["rstd"] if case.elements else None,
    )


def further(case: Case, solution: RowSolution) -> Mapping[str, Enclosure]:
    """Return the exact running statistics after the call."""
    held = {name: case_array(case, name) for name in RUNNING}
    if held["running_mean"] is None or held["running_var"] is None:
        return {}
    if not case.scalars["training"]:
        return {name: moved.unchanged(array) for name, array in held.items() if array is not None}
    return moved.exact(
        solution, held["running_mean"], held["running_var"], case.scalars["momentum"], case.columns
    )


def undefined(case: Case) -> frozenset[str]:
    """Name the running variance in training on one value a channel: the unbiased variance is 0 / 0."""
    moves = case.scalars["training"] and case.columns == 1 and case.rows > 0
    return frozenset({"running_var"} if moves and "running_var" in case.given else ())


def bounds(solved: RowsSolved, claim: Claim, form: Form, setting: Setting) -> Mapping[str, Bounded]:
    """Bound output, gradients and running statistics."""
    case = solved.case
    composer = Composer(solved, claim, form, setting)
    results = dict(composer.own()) if case.elements else _empty_sums(case)
    held = {name: case_array(case, name) for name in RUNNING}
    if held["running_mean"] is None or held["running_var"] is None:
        return results
    if not case.scalars["training"]:
        everywhere = np.ones(case.rows, dtype=np.bool_)
        return results | {n: Bounded(bound=np.zeros(case.rows), covered=everywhere) for n in RUNNING}
    momentum = case.scalars["momentum"]
    if not case.elements:
        return results
    return results | moved.bounds(composer, held["running_mean"], held["running_var"], momentum)


def given_bounds(solved: RowsSolved, claim: Claim, form: Form, setting: Setting) -> Mapping[str, Bounded]:
    """Bound the gradients of the raw backward op."""
    if not solved.case.elements:
        return _empty_sums(solved.case)
    return Composer(solved, claim, form, setting).given()


def _empty_sums(case: Case) -> dict[str, Bounded]:
    """Bound the gradients of the parameters where there is nothing to sum: they are zero."""
    nothing = Bounded(bound=np.zeros(case.rows), covered=np.ones(case.rows, dtype=np.bool_))
    return {"grad_weight": nothing, "grad_bias": nothing}


def expected(case: Case, subject: Subject) -> Mapping[str, Expected]:
    """Return the shape and dtype of output, running statistics and gradients."""
    changed = [name for name in RUNNING if name in subject.mutates and name in case.given]
    return {**output_and_gradients(case, subject), **{name: like(case.given[name]) for name in changed}}


def extents(tensors: Tensors, scalars: Scalars) -> tuple[int, int, Scalars]:
    """Read rows and columns off the tensors."""
    x = tensors["input"]
    assert x is not None
    return x.shape[1], x.shape[0] * math.prod(x.shape[2:]), scalars


def links(tensors: Tensors, _scalars: Scalars) -> Mapping[str, list[tuple[str, int]]]:
    """Name the axes that shrink together: each axis of the input with its likes."""
    x = tensors["input"]
    assert x is not None
    present = [name for name in ("input", "grad_output") if tensors.get(name) is not None]
    vectors = [(name, 0) for name in _VECTORS if tensors.get(name) is not None]
    return {
        f"axis {axis}": [*((name, axis) for name in present), *(vectors if axis == 1 else [])]
        for axis in range(x.dim())
    }


def _rows(x: torch.Tensor) -> torch.Tensor:
    """Return the input in canonical rows, in float64."""
    return x.double().transpose(0, 1).flatten(1)


def complete(tensors: Tensors, scalars: Scalars, _subject: Subject) -> dict[str, torch.Tensor | None]:
    """Make the running statistics fit: a variance is not negative, and evaluation follows far data.

    Where a channel's mean is far from zero, an evaluated model has learnt it: its running statistics
    are then those of the data, so that x - mean cancels.
    """
    done = dict(tensors)
    x, mean, var = done["input"], done.get("running_mean"), done.get("running_var")
    assert x is not None
    if not scalars["training"] and (mean is None or var is None):
        raise ValueError("evaluation needs running statistics")
    if mean is None or var is None:
        return done
    done["running_var"] = var.abs()
    if not scalars["training"]:
        own_mean, own_var = statistics(_rows(x))
        far = own_mean.abs() > 4.0 * own_var.sqrt()
        done["running_mean"] = torch.where(far, stored(own_mean, mean.dtype), mean)
        done["running_var"] = torch.where(far, stored(own_var, var.dtype), var.abs())
    return done


def complete_backward(tensors: Tensors, scalars: Scalars, subject: Subject) -> dict[str, torch.Tensor | None]:
    """Add mean and rstd in the format in which the forward pass would have saved them, (channels,)."""
    x = tensors["input"]
    assert x is not None
    rows = _rows(x)
    return with_saved_statistics(tensors, scalars, subject, rows=rows, shape=(len(rows),))
