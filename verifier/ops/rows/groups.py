"""Canonical rows of group_norm: a row is one sample's group of channels with all their positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch

from verifier.arithmetic.abstract_number import Form
from verifier.arithmetic.formats import Array
from verifier.bounds.parameter_entries import Index
from verifier.ops import Bounded, Setting, Shapes, Tensors
from verifier.ops.rows.compose_bounds import RowsSolved, case_array, rows_bounds
from verifier.ops.rows.results import with_saved_statistics
from verifier.ops.rows.two_factors import two_factors
from verifier.oracle.enclosure import Enclosure
from verifier.oracle.problem import RowSolution
from verifier.oracle.rows.problem import RowProblem
from verifier.records.case import Case, Extents, Scalars
from verifier.records.planned_launches import ShapePoint
from verifier.records.subject import Claim, Subject

VARIANTS = 6
"""(N, C, L); (N, C); (N, C, H, W); a group of each channel (instance norm); one group of all channels;
(N, C, D, H, W)."""

_SAVED = ("mean", "rstd")
_PARAMETERS = ("weight", "bias", "grad_weight", "grad_bias")


def shapes(rows: int, columns: int, variant: int, *, tensors: tuple[str, ...]) -> Shapes:
    """Lay out rows as samples and groups, columns as the channels of a group and their positions."""
    samples, groups = two_factors(rows) if rows else (0, 2)
    channels, length = two_factors(columns) if columns else (2, 0)
    positions: tuple[int, ...] = (length,)
    if variant == 1:
        channels, positions = columns, ()
    elif variant == 2:
        positions = two_factors(length)
    elif variant == 5:
        depth, area = two_factors(length)
        positions = (depth, *two_factors(area))
    elif variant == 3:
        channels, positions = 1, (columns,)
    elif variant == 4:
        samples, groups = rows, 1
    full = (samples, groups * channels, *positions)
    of = dict.fromkeys(("input", "grad_output"), full)
    of |= dict.fromkeys(("weight", "bias"), full[1:2]) | dict.fromkeys(_SAVED, (samples, groups))
    return Shapes(
        tensors={name: of[name] for name in (*tensors, "grad_output")}, scalars={"num_groups": groups}
    )


def at_integers(first: int, second: int) -> Iterator[ShapePoint]:
    """Yield two integers as rows and columns, and as groups and channels of two samples (N, C)."""
    yield first, second, 0
    if second % first == 0:
        yield 2 * first, second // first, 1


def takes(subject: Subject, shapes: Shapes) -> bool:
    """Return whether the subject has room for these shapes: without `num_groups` it takes one group."""
    return "num_groups" in subject.signature or shapes.scalars["num_groups"] == 1


def canonical(extents: Extents, name: str, array: Array) -> Array:
    """Bring an argument, output, statistic or gradient into canonical rows."""
    if name in _SAVED:
        return array.reshape(extents.rows)
    if name in _PARAMETERS:
        return array.reshape(extents.input_shape[1])
    return array.reshape(extents.rows, extents.columns)


def channel_of(case: Case) -> Index:
    """Return the channel that each element belongs to, (rows, columns)."""
    groups, channels = case.scalars["num_groups"], case.given["input"].shape[1] // case.scalars["num_groups"]
    group = np.arange(case.rows, dtype=np.int64)[:, None] % groups
    length = case.columns // max(channels, 1)
    within = np.arange(case.columns, dtype=np.int64)[None, :] // max(length, 1)
    return np.asarray(group * channels + within, dtype=np.int64)


def problem(case: Case) -> RowProblem:
    """Pose the forward op with its VJP to the oracle."""
    return posed(case, channel_of(case), canonical)


def posed(case: Case, channels: Index, canonical: Callable[[Extents, str, Array], Array]) -> RowProblem:
    """Pose a norm whose parameters go by channels; channels: that of each element, (rows, columns)."""

    def rows(name: str) -> Array | None:
        array = case_array(case, name)
        return None if array is None else canonical(case, name, array)

    def parameter(name: str) -> Array | None:
        array = case_array(case, name)
        return None if array is None else array[channels]

    values = rows("input")
    assert values is not None
    return RowProblem(
        input=values,
        eps=case.eps,
        weight=parameter("weight"),
        bias=parameter("bias"),
        grad_output=rows("grad_output"),
        parameter=channels,
    )


def given_problem(case: Case) -> RowProblem:
    """Pose the raw backward op, whose statistics are exact inputs, to the oracle."""
    base = problem(case)
    if not case.elements:
        return base  # of no elements nothing is asked of the statistics
    mean, rstd = (case_array(case, name) for name in _SAVED)
    assert mean is not None
    assert rstd is not None
    return RowProblem(
        input=base.input,
        eps=base.eps,
        weight=base.weight,
        grad_output=base.grad_output,
        parameter=base.parameter,
        mean=mean.reshape(case.rows, 1),
        rstd=rstd.reshape(case.rows, 1),
    )


def further(case: Case, solution: RowSolution) -> Mapping[str, Enclosure]:
    """Return the gradients of the parameters where no element names its channel: empty sums."""
    if solution.grad_weight is None or case.elements:
        return {}
    nothing = np.zeros(case.given["input"].shape[1])
    zeros = Enclosure(high=nothing, low=nothing, radius=nothing)
    return {"grad_weight": zeros, "grad_bias": zeros}


def bounds(solved: RowsSolved, claim: Claim, form: Form, setting: Setting) -> Mapping[str, Bounded]:
    """Bound every output and gradient; sums over no elements are zero."""
    if not solved.case.elements:
        nothing = np.zeros(solved.case.given["input"].shape[1])
        everywhere = np.ones(len(nothing), dtype=np.bool_)
        empty = Bounded(bound=nothing, covered=everywhere)
        return {"grad_weight": empty, "grad_bias": empty}
    return rows_bounds(solved, claim, form, setting)


def extents(tensors: Tensors, scalars: Scalars) -> tuple[int, int, Scalars]:
    """Read rows and columns off the tensors."""
    x = tensors["input"]
    assert x is not None
    groups = scalars["num_groups"]
    return x.shape[0] * groups, x.shape[1] // groups * math.prod(x.shape[2:]), scalars


def links(tensors: Tensors, scalars: Scalars) -> Mapping[str, list[tuple[str, int]]]:
    """Name the axes that shrink together; channels stay where they are divided into several groups."""
    x = tensors["input"]
    assert x is not None
    present = [name for name in ("input", "grad_output") if tensors.get(name) is not None]
    parameters = [(name, 0) for name in ("weight", "bias") if tensors.get(name) is not None]
    saved = [(name, 0) for name in _SAVED if tensors.get(name) is not None]
    tied = {}
    for axis in range(x.dim()):
        if axis == 1 and scalars["num_groups"] != 1:
            continue
        more = {0: saved, 1: parameters}.get(axis, [])
        tied[f"axis {axis}"] = [*((name, axis) for name in present), *more]
    return tied


def complete_backward(tensors: Tensors, scalars: Scalars, subject: Subject) -> dict[str, torch.Tensor | None]:
    """Add mean and rstd in the format in which the forward pass would have saved them, (samples, groups)."""
    x = tensors["input"]
    assert x is not None
    values = x.double().reshape(extents(tensors, scalars)[:2])
    shape = (x.shape[0], scalars["num_groups"])
    return with_saved_statistics(tensors, scalars, subject, rows=values, shape=shape)
