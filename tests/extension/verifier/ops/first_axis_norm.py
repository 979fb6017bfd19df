"""first_axis_norm: layer_norm over the first axis of a (columns, rows) tensor, without parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verifier.arithmetic.formats import Array
from verifier.ops import Op, Shapes, Tensors
from verifier.ops.layer_norm import FORMS
from verifier.ops.rows import results, trailing_dimensions
from verifier.ops.rows.compose_bounds import case_array, rows_bounds
from verifier.oracle.rows.problem import RowProblem
from verifier.records.case import Case, Extents

TENSORS = ("input",)


def shapes(rows: int, columns: int, _variant: int) -> Shapes:
    """Lay out rows and columns: each row stands in a column of the tensor."""
    return Shapes(tensors=dict.fromkeys((*TENSORS, "grad_output"), (columns, rows)))


def canonical(_extents: Extents, _name: str, array: Array) -> Array:
    """Bring an argument, output or gradient into canonical rows."""
    return array.T


def problem(case: Case) -> RowProblem:
    """Pose the case to the oracle."""
    x, gradient = (case_array(case, name) for name in ("input", "grad_output"))
    assert x is not None
    return RowProblem(
        input=x.T, grad_output=None if gradient is None else gradient.T, eps=case.eps, parameter="columns"
    )


def extents(tensors: Tensors, scalars: Mapping[str, Any]) -> tuple[int, int, Mapping[str, Any]]:
    """Read rows and columns off the tensors."""
    x = tensors["input"]
    assert x is not None
    return x.shape[1], x.shape[0], scalars


def links(tensors: Tensors, _scalars: Mapping[str, Any]) -> Mapping[str, list[tuple[str, int]]]:
    """Name the axes that shrink together."""
    names = [name for name in (*TENSORS, "grad_output") if tensors.get(name) is not None]
    return {f"axis {axis}": [(name, axis) for name in names] for axis in range(2)}


OP = Op(
    name="first_axis_norm",
    summary="(x - mean) / sqrt(var + eps) over the first axis",
    tensors=TENSORS,
    differentiable=TENSORS,
    forms=FORMS,
    shapes=shapes,
    canonical=canonical,
    problem=problem,
    exact=trailing_dimensions.exact,
    bounds=rows_bounds,
    expected=results.expected,
    extents=extents,
    links=links,
)
