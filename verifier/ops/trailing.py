"""Canonical rows of norms over trailing dimensions: layer_norm, rms_norm and their backward ops."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from verifier.arithmetic import Array
from verifier.case import Case
from verifier.numbers import Form
from verifier.ops import Bounded, Expected, Setting, Shapes, Tensors
from verifier.ops.rows import case_array, rows_bounds
from verifier.oracle.normalization import RowProblem, RowSolution
from verifier.subjects import Claim, Subject

VARIANTS = 5
"""2-D; 3-D; two normalized dimensions; one dimension (one row); 4-D."""

_SAVED = {"mean", "rstd"}
_PARAMETERS = {"weight", "bias", "grad_weight", "grad_bias"}


def shapes(rows: int, columns: int, variant: int, *, tensors: tuple[str, ...]) -> Shapes | None:
    """Lay out rows and columns as PyTorch's norms over trailing dimensions take them."""
    leading: tuple[int, ...] = (rows,)
    trailing: tuple[int, ...] = (columns,)
    if variant == 1:
        leading = _split(rows)
    elif variant == 2:
        trailing = _split(columns)
    elif variant == 3:
        leading = ()
        if rows != 1:
            return None
    elif variant == 4:
        leading = (1, *_split(rows))
    full = (*leading, *trailing)
    of = {"input": full, "grad_output": full, "weight": trailing, "bias": trailing}
    of |= {"mean": (rows,), "rstd": (rows,), "output": full}
    return Shapes(
        tensors={name: of[name] for name in (*tensors, "grad_output")},
        scalars={"normalized_shape": trailing},
    )


def _split(extent: int) -> tuple[int, int]:
    """Split an extent into two factors, the first the smallest prime factor."""
    if extent < 2:
        return (1, extent)
    first = next((p for p in (2, 3, 5, 7, 11, 13) if extent % p == 0), 1)
    return (first, extent // first)


def canonical(case: Case, name: str, array: Array) -> Array:
    """Bring an argument, output or gradient into canonical rows."""
    if name in _SAVED:
        return array.reshape(case.rows)
    if name in _PARAMETERS:
        return array.reshape(case.columns)
    return array.reshape(case.rows, case.columns)


def problem(case: Case, *, centred: bool) -> RowProblem:
    """Pose a forward op with its VJP to the oracle."""

    def rows(name: str) -> Array | None:
        array = case_array(case, name)
        if array is None:
            return None
        return np.atleast_2d(canonical(case, name, array))

    values = rows("input")
    assert values is not None
    return RowProblem(
        input=values,
        eps=case.eps,
        centred=centred,
        weight=rows("weight"),
        bias=rows("bias"),
        grad_output=rows("grad_output"),
        parameter="columns",
    )


def given_problem(case: Case, *, centred: bool) -> RowProblem:
    """Pose a raw backward op, whose statistics are exact inputs, to the oracle."""
    base = problem(case, centred=centred)
    statistics: dict[str, Array | None] = {name: case_array(case, name) for name in _SAVED}
    columns = {name: None if a is None else a.reshape(case.rows, 1) for name, a in statistics.items()}
    return RowProblem(
        input=base.input,
        eps=base.eps,
        centred=centred,
        weight=base.weight,
        # grad_bias exists where grad_weight does; the bias itself has no influence on gradients.
        bias=None if base.weight is None else np.zeros_like(base.weight),
        grad_output=base.grad_output,
        parameter="columns",
        mean=columns["mean"] if centred else None,
        rstd=columns["rstd"],
    )


def exact(solution: RowSolution) -> Mapping[str, Any]:
    """Name the exact results."""
    names = ("output", "mean", "rstd", "grad_input", "grad_weight", "grad_bias")
    found = {name: getattr(solution, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def bounds_with(*, centred: bool, given: bool) -> Any:
    """Return the op's bound function."""
    pose = given_problem if given else problem

    def bounds(
        case: Case, claim: Claim, form: Form, setting: Setting, solution: RowSolution
    ) -> Mapping[str, Bounded]:
        return rows_bounds(case, claim, form, setting, solution, pose(case, centred=centred))

    return bounds


def expected(case: Case, subject: Subject) -> Mapping[str, Expected]:
    """Return the shape and dtype of output and gradients; statistics may have any of PyTorch's shapes."""
    del subject
    given = case.given
    x = given["input"]
    results = {"output": Expected(shape=tuple(x.shape), dtype=x.dtype)}
    for name in ("input", "weight", "bias"):
        tensor = given.get(name)
        if tensor is not None:
            results[f"grad_{name}"] = Expected(shape=tuple(tensor.shape), dtype=tensor.dtype)
    return results


def expected_backward(case: Case, subject: Subject) -> Mapping[str, Expected]:
    """Return the shape and dtype of the results of a raw backward op; grad_bias is like weight."""
    results = dict(expected(case, subject))
    del results["output"]
    if "grad_weight" in results:
        results["grad_bias"] = results["grad_weight"]
    return results


def extents(tensors: Tensors, scalars: Mapping[str, Any]) -> tuple[int, int, Mapping[str, Any]]:
    """Read rows, columns and normalized_shape off the tensors."""
    x = tensors["input"]
    assert x is not None
    trailing = tuple(x.shape[x.dim() - len(scalars["normalized_shape"]) :])
    columns = math.prod(trailing)
    rows = math.prod(x.shape[: x.dim() - len(trailing)])
    return rows, columns, {**scalars, "normalized_shape": trailing}


def links(tensors: Tensors, scalars: Mapping[str, Any]) -> Mapping[str, list[tuple[str, int]]]:
    """Name the axes that shrink together: each axis of the input with its likes."""
    x = tensors["input"]
    assert x is not None
    leading = x.dim() - len(scalars["normalized_shape"])
    tied: dict[str, list[tuple[str, int]]] = {}
    for axis in range(x.dim()):
        places = [(name, axis) for name in ("input", "grad_output") if tensors.get(name) is not None]
        if axis >= leading:
            names = [n for n in ("weight", "bias") if tensors.get(n) is not None]
            places += [(n, axis - leading) for n in names]
        elif leading == 1:
            places += [(n, 0) for n in ("mean", "rstd") if tensors.get(n) is not None]
        if axis >= leading or leading == 1 or not any(tensors.get(n) is not None for n in _SAVED):
            tied[f"axis {axis}"] = places
    return tied


def complete_backward(
    tensors: Tensors, scalars: Mapping[str, Any], subject: Subject, *, centred: bool
) -> dict[str, torch.Tensor | None]:
    """Add mean and rstd in the format in which the forward pass would have saved them, (rows,)."""
    done = dict(tensors)
    x = done["input"]
    assert x is not None
    columns = math.prod(scalars["normalized_shape"])
    values = x.double().reshape(math.prod(x.shape[: x.dim() - len(scalars["normalized_shape"])]), columns)
    if columns:
        mean = values.mean(1) if centred else torch.zeros(values.shape[0], dtype=torch.float64)
        square = (values - mean[:, None]).square().mean(1)
    else:
        mean = square = torch.zeros(values.shape[0], dtype=torch.float64)
    dtype = str(x.dtype).removeprefix("torch.")
    saved = subject.claim.saved_dtype or subject.accumulation(dtype)
    held = getattr(torch, dtype if saved == "input" else saved)
    statistics = {"mean": mean, "rstd": (square + scalars["eps"]).rsqrt()}
    largest = torch.finfo(held).max
    for name in (n for n in statistics if n in done):
        done[name] = statistics[name].nan_to_num(0.0).clamp(-largest, largest).to(held)
    return done
