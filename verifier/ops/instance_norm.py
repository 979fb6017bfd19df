"""instance_norm: y = (x - mean) / sqrt(var + eps) * weight + bias over the positions of each channel.

Source: Ulyanov, Vedaldi, Lempitsky 2016; torch.nn.functional.instance_norm (biased variance) with the
statistics of the input: running statistics are not kept, and not used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from verifier.ops import Op, Shapes, Tensors, special_values
from verifier.ops.batch_norm import FORMS
from verifier.ops.rows import groups, results, trailing_dimensions
from verifier.ops.rows.two_factors import two_factors
from verifier.oracle.rows.problem import RowProblem
from verifier.records.case import Case, Scalars

TENSORS = ("input", "weight", "bias")
VARIANTS = 3
"""(N, C, L); (N, C, H, W); (N, C, D, H, W)."""


def shapes(rows: int, columns: int, variant: int) -> Shapes:
    """Lay out rows as samples and channels, columns as positions."""
    samples, channels = two_factors(rows) if rows else (0, 2)
    positions: tuple[int, ...] = (columns,)
    for _ in range(variant):
        positions = (*positions[:-1], *two_factors(positions[-1]))
    full = (samples, channels, *positions)
    of = dict.fromkeys(("input", "grad_output"), full) | dict.fromkeys(("weight", "bias"), (channels,))
    return Shapes(tensors=of)


def problem(case: Case) -> RowProblem:
    """Pose the forward op with its VJP to the oracle."""
    channels = np.arange(case.rows, dtype=np.int64) % max(case.given["input"].shape[1], 1)
    return groups.posed(case, np.broadcast_to(channels[:, None], (case.rows, case.columns)), groups.canonical)


def extents(tensors: Tensors, scalars: Scalars) -> tuple[int, int, Scalars]:
    """Read rows and columns off the tensors."""
    x = tensors["input"]
    assert x is not None
    return x.shape[0] * x.shape[1], math.prod(x.shape[2:]), scalars


def links(tensors: Tensors, _scalars: Scalars) -> Mapping[str, list[tuple[str, int]]]:
    """Name the axes that shrink together."""
    x = tensors["input"]
    assert x is not None
    present = [name for name in ("input", "grad_output") if tensors.get(name) is not None]
    parameters = [(name, 0) for name in ("weight", "bias") if tensors.get(name) is not None]
    return {
        f"axis {axis}": [*((name, axis) for name in present), *(parameters if axis == 1 else ())]
        for axis in range(x.dim())
    }


OP = Op(
    name="instance_norm",
    summary="(x - mean) / sqrt(var + eps) * weight + bias over the positions of each channel",
    tensors=TENSORS,
    optional=("weight", "bias"),
    differentiable=("input", "weight", "bias"),
    variants=VARIANTS,
    forms=FORMS,
    shapes=shapes,
    canonical=groups.canonical,
    problem=problem,
    exact=trailing_dimensions.exact,
    further=groups.further,
    bounds=groups.bounds,
    expected=results.expected,
    extents=extents,
    links=links,
    special=special_values.centred,
    shift_invariant=True,
    scale_invariant=True,
)
