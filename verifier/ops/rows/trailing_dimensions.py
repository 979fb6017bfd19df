"""Canonical rows of norms over trailing dimensions: layer_norm, rms_norm and their backward ops."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

from verifier.arithmetic.formats import Array
from verifier.ops import Shapes, Tensors
from verifier.ops.rows.compose_bounds import case_array
from verifier.ops.rows.results import with_saved_statistics
from verifier.ops.rows.two_factors import four_factors, three_factors, two_factors
from verifier.oracle.enclosure import Enclosure
from verifier.oracle.problem import RowSolution
from verifier.oracle.rows.problem import RowProblem
from verifier.records.case import Case, Extents, Scalars
from verifier.records.subject import Subject

VARIANTS = 6
"""2-D; 3-D; two normalized dimensions; one dimension (one row); 4-D, or 5-D if rows have four factors; three
normalized dimensions of 5-D."""

_SAVED = {"mean", "rstd"}
_PARAMETERS = {"weight", "bias", "grad_weight", "grad_bias"}


def shapes(
    rows: int, columns: int, variant: int, *, tensors: tuple[str, ...], like: tuple[str, ...] = ()
) -> Shapes | None:
    """Lay out rows and columns as PyTorch's norms over trailing dimensions take them.

    like: tensors of the input's shape, whether they are arguments or not.
    """
    leading: tuple[int, ...] = (rows,)
    trailing: tuple[int, ...] = (columns,)
    if variant == 1:
        leading = two_factors(rows)
    elif variant == 2:
        trailing = two_factors(columns)
    elif variant == 3:
        leading = ()
        if rows != 1:
            return None
    elif variant == 4:
        leading = four_factors(rows) or three_factors(rows)
    elif variant == 5:
        first, rest = two_factors(columns)
        leading, trailing = two_factors(rows), (first, *two_factors(rest))
    full = (*leading, *trailing)
    of = {"input": full, "grad_output": full, "weight": trailing, "bias": trailing}
    of |= {"mean": (rows,), "rstd": (rows,), "output": full}
    named = {name: of[name] for name in (*tensors, "grad_output") if name not in like}
    return Shapes(
        tensors={**named, **dict.fromkeys(like, full)},
        scalars={"normalized_shape": trailing},
    )


def canonical(extents: Extents, name: str, array: Array) -> Array:
    """Bring an argument, output or gradient into canonical rows."""
    if name in _SAVED:
        return array.reshape(extents.rows)
    if name in _PARAMETERS:
        return array.reshape(extents.columns)
    return array.reshape(extents.rows, extents.columns)


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


def exact(solution: RowSolution) -> Mapping[str, Enclosure]:
    """Name the exact results."""
    names = ("output", "mean", "rstd", "grad_input", "grad_weight", "grad_bias")
    found = {name: getattr(solution, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def extents(tensors: Tensors, scalars: Scalars) -> tuple[int, int, Scalars]:
    """Read rows, columns and normalized_shape off the tensors."""
    x = tensors["input"]
    assert x is not None
    trailing = tuple(x.shape[x.dim() - len(scalars["normalized_shape"]) :])
    columns = math.prod(trailing)
    rows = math.prod(x.shape[: x.dim() - len(trailing)])
    return rows, columns, {**scalars, "normalized_shape": trailing}


def links(
    tensors: Tensors, scalars: Scalars, *, like: tuple[str, ...] = ()
) -> Mapping[str, list[tuple[str, int]]]:
    """Name the axes that shrink together: each axis of the input with its likes. like: more of its shape."""
    x = tensors["input"]
    assert x is not None
    leading = x.dim() - len(scalars["normalized_shape"])
    tied: dict[str, list[tuple[str, int]]] = {}
    for axis in range(x.dim()):
        whole = ("input", "grad_output", *like)
        places = [(name, axis) for name in whole if tensors.get(name) is not None]
        if axis >= leading:
            names = [n for n in ("weight", "bias") if tensors.get(n) is not None]
            places += [(n, axis - leading) for n in names]
        elif leading == 1:
            places += [(n, 0) for n in ("mean", "rstd") if tensors.get(n) is not None]
        if axis >= leading or leading == 1 or not any(tensors.get(n) is not None for n in _SAVED):
            tied[f"axis {axis}"] = places
    return tied


def complete_backward(
    tensors: Tensors, scalars: Scalars, subject: Subject, *, centred: bool
) -> dict[str, torch.Tensor | None]:
    """Add mean and rstd in the format in which the forward pass would have saved them, (rows,)."""
    x = tensors["input"]
    assert x is not None
    rows, columns, _ = extents(tensors, scalars)
    values = x.double().reshape(rows, columns)
    return with_saved_statistics(tensors, scalars, subject, rows=values, shape=(rows,), centred=centred)
