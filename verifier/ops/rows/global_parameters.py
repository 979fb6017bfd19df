"""Parameters each of whose numbers acts on all elements: a learned scale, the weights of powers.

Rows and columns are those of an op over trailing dimensions; a gradient of such a parameter is a sum of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from verifier.arithmetic.abstract_number import Form
from verifier.arithmetic.formats import Array
from verifier.ops import Shapes, Tensors
from verifier.ops.rows import formula, trailing_dimensions
from verifier.ops.rows.compose_bounds import case_array
from verifier.oracle.formulas.problem import FormulaProblem
from verifier.records.case import Case, Extents, Scalars

Sizes = Mapping[str, int]
"""By name of such a parameter, how many numbers it has."""


def shapes(rows: int, columns: int, variant: int, *, tensors: tuple[str, ...], sizes: Sizes) -> Shapes | None:
    """Lay out rows and columns as norms over trailing dimensions do, and the parameters."""
    others = tuple(name for name in tensors if name not in sizes)
    laid = trailing_dimensions.shapes(rows, columns, variant, tensors=others)
    if laid is None:
        return None
    return replace(laid, tensors={**laid.tensors, **{name: (size,) for name, size in sizes.items()}})


def canonical(extents: Extents, name: str, array: Array, *, sizes: Sizes) -> Array:
    """Bring an argument, output or gradient into canonical rows; such a parameter is (size,)."""
    role = name.removeprefix("grad_")
    if role in sizes:
        return array.reshape(sizes[role])
    return trailing_dimensions.canonical(extents, name, array)


def links(tensors: Tensors, scalars: Scalars, *, sizes: Sizes) -> Mapping[str, list[tuple[str, int]]]:
    """Name the axes that shrink together: none of such a parameter."""
    return trailing_dimensions.links({n: t for n, t in tensors.items() if n not in sizes}, scalars)


def problem(case: Case, *, form: Form, sizes: Sizes) -> FormulaProblem:
    """Pose the op with its VJP to the oracle; form: the canonical one, which reads no moments."""

    def read(name: str) -> Array | None:
        array = case_array(case, name)
        return None if array is None else np.atleast_2d(canonical(case, name, array, sizes=sizes))

    values = read("input")
    assert values is not None
    further = {name: read(name) for name in sizes if name not in {"weight", "bias"}}
    return FormulaProblem(
        input=values,
        eps=case.eps,
        centred=False,
        weight=read("weight"),
        bias=read("bias"),
        grad_output=read("grad_output"),
        parameter="columns",
        form=form,
        further={name: array for name, array in further.items() if array is not None},
        scalars={formula.EPS: case.eps},
        moments=False,
        wholes=tuple(sizes),
    )
