"""Axes of what a specification computes with: rows, columns, and the features that a matrix product gives."""

from __future__ import annotations

from typing import TypedDict

ROWS, COLUMNS, FEATURES = "rows", "columns", "features"
LINEAR_WEIGHT, LINEAR_BIAS = "linear_weight", "linear_bias"
"""A matrix (features, columns), as of torch.nn.Linear, and what is added to the product, (features,)."""


class Laying(TypedDict):
    """Which axes an argument has, how long they are, and along which of them it varies."""

    extents: tuple[int, int]
    axes: tuple[str, str]
    varies: tuple[bool, bool]


def layout(name: str, extents: tuple[int, int], parameters: tuple[str, ...], features: int | None) -> Laying:
    """Return how an argument lies; extents: rows and columns of the input. features: None without a matrix.

    The gradient of an output has the axes of the output.
    """
    rows, columns = extents
    if features is not None and name == LINEAR_WEIGHT:
        return Laying(extents=(features, columns), axes=(FEATURES, COLUMNS), varies=(True, True))
    if features is not None and name in {LINEAR_BIAS, "grad_output"}:
        return Laying(extents=(rows, features), axes=(ROWS, FEATURES), varies=(name not in parameters, True))
    return Laying(extents=extents, axes=(ROWS, COLUMNS), varies=(name not in parameters, True))
