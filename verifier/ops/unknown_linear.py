"""unknown_linear: what op unknown is called where the specification multiplies rows by a matrix.

Rows (rows, columns) become (rows, features) by linear_weight, (features, columns) as of torch.nn.Linear.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from verifier.arithmetic.formats import Array
from verifier.ops import Expected, Shapes, Tensors, unknown
from verifier.ops.rows import trailing_dimensions
from verifier.ops.rows.results import like
from verifier.ops.specification.axes import LINEAR_BIAS, LINEAR_WEIGHT
from verifier.records.case import FEATURES, Case, Extents, Scalars
from verifier.records.subject import Subject

TENSORS = (*unknown.TENSORS, LINEAR_WEIGHT, LINEAR_BIAS)
PARAMETERS = (*unknown.PARAMETERS, LINEAR_WEIGHT, LINEAR_BIAS)
_FEW, _MANY, _BEYOND, _OF_LONG_ROWS = 3, 16, 64, 7


def features(rows: int, columns: int) -> int:
    """Return how many features a case has: as many as columns, more, a block of them, one, or few.

    Extents choose, so that the few shapes of a check have them all; of long rows there are never as many.
    """
    short = columns <= _BEYOND
    levels = (
        columns if short and columns else _OF_LONG_ROWS,
        columns + _FEW if short else _OF_LONG_ROWS,
        _MANY,
        1,
        _FEW,
    )
    return levels[(rows + 2 * columns.bit_length()) % len(levels)]


def shapes(rows: int, columns: int, variant: int) -> Shapes | None:
    """Lay out rows and columns as op unknown does; the product is over the last dimension alone."""
    others = ("input", *unknown.PARAMETERS)
    laid = trailing_dimensions.shapes(rows, columns, variant, tensors=others, like=unknown.LIKE_THE_INPUT)
    if laid is None or len(laid.scalars["normalized_shape"]) != 1:
        return None
    count = features(rows, columns)
    given = {
        LINEAR_WEIGHT: (count, columns),
        LINEAR_BIAS: (count,),
        "grad_output": (*laid.tensors["input"][:-1], count),
    }
    return replace(laid, tensors={**laid.tensors, **given}, scalars={**laid.scalars, FEATURES: count})


def canonical(extents: Extents, name: str, array: Array) -> Array:
    """Bring an argument, result or gradient into canonical rows; those of the matrix are features."""
    role, count = name.removeprefix("grad_"), int(extents.scalars[FEATURES])
    if role == LINEAR_WEIGHT:
        return array.reshape(count, extents.columns)
    if role == LINEAR_BIAS:
        return array.reshape(count)
    of_features = extents.columns != count and array.size == extents.rows * count != extents.rows
    if name in {"output", "grad_output"} or (of_features and role not in unknown.TENSORS):
        return array.reshape(extents.rows, count)
    return unknown.canonical(extents, name, array)


def expected(case: Case, subject: Subject) -> Mapping[str, Expected]:
    """Return the shape and dtype of output and gradients; what else is returned may have any."""
    x = like(case.given["input"])
    output = replace(x, shape=(*x.shape[:-1], int(case.scalars[FEATURES])))
    taken = [name for name in case.given if name in TENSORS and name in subject.signature]
    return {"output": output, **{f"grad_{name}": like(case.given[name]) for name in taken}}


def extents(tensors: Tensors, scalars: Scalars) -> tuple[int, int, Scalars]:
    """Read rows, columns and what goes with them off the tensors."""
    rows, columns, known = trailing_dimensions.extents(tensors, scalars)
    matrix = tensors.get(LINEAR_WEIGHT)
    return rows, columns, known if matrix is None else {**known, FEATURES: int(matrix.shape[0])}


def links(tensors: Tensors, scalars: Scalars) -> Mapping[str, list[tuple[str, int]]]:
    """Name the axes that shrink together: the last one of grad_output is that of features."""
    tied = {
        n: list(axes)
        for n, axes in trailing_dimensions.links(tensors, scalars, like=unknown.LIKE_THE_INPUT).items()
    }
    x = tensors["input"]
    assert x is not None
    last, own = f"axis {x.dim() - 1}", {"grad_output": x.dim() - 1, LINEAR_WEIGHT: 0, LINEAR_BIAS: 0}
    tied[last] = [place for place in tied[last] if place[0] != "grad_output"]
    tied[last] += [(LINEAR_WEIGHT, 1)] if tensors.get(LINEAR_WEIGHT) is not None else []
    tied["features"] = [(name, axis) for name, axis in own.items() if tensors.get(name) is not None]
    return tied


OP = replace(
    unknown.OP,
    name="unknown_linear",
    summary="What op unknown is called where the specification multiplies rows by a matrix",
    tensors=TENSORS,
    optional=(*unknown.OP.optional, LINEAR_BIAS),
    differentiable=TENSORS,
    parameters=PARAMETERS,
    varied=(LINEAR_BIAS,),
    shapes=shapes,
    canonical=canonical,
    expected=expected,
    extents=extents,
    links=links,
)
