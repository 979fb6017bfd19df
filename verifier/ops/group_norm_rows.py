"""Canonical rows of group_norm: a row is one sample's group of channels with all their positions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from verifier.arithmetic import Array
from verifier.case import Case
from verifier.numbers import Form
from verifier.ops import Bounded, Expected, Setting, Shapes, Tensors
from verifier.ops.factors import two_factors
from verifier.ops.rows import case_array, rows_bounds
from verifier.oracle.enclosure import Enclosure
from verifier.oracle.normalization import RowProblem, RowSolution
from verifier.subjects import Claim, Subject

VARIANTS = 5
"""(N, C, L); (N, C); (N, C, H, W); a group of each channel (instance norm); one group of all channels."""

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


def takes(subject: Subject, shapes: Shapes) -> bool:
    """Return whether the subject has room for these shapes: without `num_groups` it takes one group."""
    return "num_groups" in subject.signature or shapes.scalars["num_groups"] == 1


def canonical(case: Case, name: str, array: Array) -> Array:
    """Bring an argument, output, statistic or gradient into canonical rows."""
    if name in _SAVED:
        return array.reshape(case.rows)
    if name in _PARAMETERS:
        return array.reshape(case.given["input"].shape[1])
    return array.reshape(case.rows, case.columns)


def channel_of(case: Case) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return the channel that each element belongs to, (rows, columns)."""
    groups, channels = case.scalars["num_groups"], case.given["input"].shape[1] // case.scalars["num_groups"]
    group = np.arange(case.rows, dtype=np.int64)[:, None] % groups
    length = case.columns // max(channels, 1)
    within = np.arange(case.columns, dtype=np.int64)[None, :] // max(length, 1)
    return np.asarray(group * channels + within, dtype=np.int64)


def problem(case: Case) -> RowProblem:
    """Pose the forward op with its VJP to the oracle."""
    channels = channel_of(case)

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


def bounds_with(*, given: bool) -> Any:
    """Return the op's bound function."""
    pose = given_problem if given else problem
    return partial(_bounds, pose=pose)


def _bounds(
    case: Case, claim: Claim, form: Form, setting: Setting, solution: RowSolution, *, pose: Any
) -> Mapping[str, Bounded]:
    if not case.elements:
        nothing = np.zeros(case.given["input"].shape[1])
        everywhere = np.ones(len(nothing), dtype=np.bool_)
        empty = Bounded(bound=nothing, covered=everywhere)
        return {"grad_weight": empty, "grad_bias": empty}
    return rows_bounds(case, claim, form, setting, solution, pose(case))


def expected(case: Case, subject: Subject) -> Mapping[str, Expected]:
    """Return the shape and dtype of output and gradients; statistics may have any of PyTorch's shapes."""
    del subject
    given = case.given
    results = {"output": Expected(shape=tuple(given["input"].shape), dtype=given["input"].dtype)}
    for name in ("input", "weight", "bias"):
        tensor = given.get(name)
        if tensor is not None:
            results[f"grad_{name}"] = Expected(shape=tuple(tensor.shape), dtype=tensor.dtype)
    return results


def expected_backward(case: Case, subject: Subject) -> Mapping[str, Expected]:
    """Return the shape and dtype of the results of the raw backward op; grad_bias is like weight."""
    results = dict(expected(case, subject))
    del results["output"]
    if "grad_weight" in results:
        results["grad_bias"] = results["grad_weight"]
    return results


def extents(tensors: Tensors, scalars: Mapping[str, Any]) -> tuple[int, int, Mapping[str, Any]]:
    """Read rows and columns off the tensors."""
    x = tensors["input"]
    assert x is not None
    groups = scalars["num_groups"]
    return x.shape[0] * groups, x.shape[1] // groups * math.prod(x.shape[2:]), scalars


def links(tensors: Tensors, scalars: Mapping[str, Any]) -> Mapping[str, list[tuple[str, int]]]:
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


def complete_backward(
    tensors: Tensors, scalars: Mapping[str, Any], subject: Subject
) -> dict[str, torch.Tensor | None]:
    """Add mean and rstd in the format in which the forward pass would have saved them, (samples, groups)."""
    done = dict(tensors)
    x = done["input"]
    assert x is not None
    rows, columns, _ = extents(tensors, scalars)
    values = x.double().reshape(rows, columns)
    mean = values.mean(1) if columns else values.new_zeros(rows)
    square = (values - mean[:, None]).square().mean(1) if columns else values.new_zeros(rows)
    dtype = str(x.dtype).removeprefix("torch.")
    saved = subject.claim.saved_dtype or subject.accumulation(dtype)
    held = getattr(torch, dtype if saved == "input" else saved)
    largest = torch.finfo(held).max
    for name, value in (("mean", mean), ("rstd", (square + scalars["eps"]).rsqrt())):
        stored = value.nan_to_num(0.0).clamp(-largest, largest).to(held)
        done[name] = stored.reshape(x.shape[0], scalars["num_groups"])
    return done
