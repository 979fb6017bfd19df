"""Errors of an output in units in the last place at the scale of its row, as observed: nothing is judged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from verifier.arithmetic.formats import FORMATS, Array
from verifier.arithmetic.simulated import round_to
from verifier.checks.support.output_verdict import format_of, row_scale
from verifier.checks.support.truth import Truth
from verifier.checks.support.worst_element import ulp_of
from verifier.ops import Bounded
from verifier.ops.rows.compose_bounds import to_float64

TAIL = 99.9
"""The percentile that is told beside the worst and the mean."""


@dataclass(frozen=True, kw_only=True)
class RowErrors:
    """Errors of one output in ulp of its format at max(|exact|, root mean square of the row).

    Over all elements whose exact value is finite, whether a theorem covers them or not; a result that is not
    finite where the correctly rounded one is has an infinite error.
    worst, tail (percentile TAIL), mean: of |error|; signed: mean of the error. rounded: worst error of the
    correctly rounded result. bound: the largest proved bound, NaN where some element has none.
    """

    worst: float
    tail: float
    mean: float
    signed: float
    rounded: float
    bound: float = math.nan


def row_errors(truth: Truth, name: str, actual: torch.Tensor) -> RowErrors | None:
    """Return the errors of an output, or None where there is nothing to compare."""
    if name not in truth.exact or actual.numel() == 0 or format_of(actual) not in FORMATS:
        return None
    if actual.numel() != math.prod(truth.shape_of(name)):
        return None
    form, exact = format_of(actual), truth.exact[name]
    values = np.asarray(truth.op.canonical(truth.case, name, to_float64(actual)))
    high = np.broadcast_to(exact.high, values.shape)
    usable = np.isfinite(high)
    if not usable.any():
        return None
    with np.errstate(all="ignore"):
        unit, nearest = _unit(high, form), round_to(FORMATS[form], np.asarray(high))
        error = ((values - high) - exact.low) / unit
        error = np.where(values == nearest, np.where(np.isfinite(nearest), error, 0.0), error)
        rounded = np.where(np.isfinite(nearest), ((nearest - high) - exact.low) / unit, 0.0)
    error = np.where(np.isnan(error), math.inf, error)[usable]
    size = np.abs(error)
    return RowErrors(
        worst=float(size.max()),
        tail=float(np.percentile(size, TAIL, method="higher")),
        mean=float(size.mean()),
        signed=float(error.mean()) if np.isfinite(error).all() else math.nan,
        rounded=float(np.abs(rounded[usable]).max()),
        bound=largest_bound(truth, truth.bounds, name, form),
    )


def largest_bound(truth: Truth, bounds: Mapping[str, Bounded], name: str, form: str) -> float:
    """Return the largest of some proved bounds in the unit of `RowErrors`; NaN where an element has none."""
    if name not in bounds:
        return math.nan
    exact, found = np.asarray(truth.exact[name].high), bounds[name]
    shape = np.broadcast_shapes(exact.shape, np.shape(found.bound))
    high, bound, covered = (np.broadcast_to(part, shape) for part in (exact, found.bound, found.covered))
    if not (covered & np.isfinite(bound)).all():
        return math.nan
    with np.errstate(all="ignore"):
        units = np.divide(bound, _unit(np.asarray(high, dtype=np.float64), form))
    return float(np.max(units, initial=0.0))


def _unit(exact: Array, form: str) -> Array:
    """Return one unit in the last place at the scale of each element's row."""
    return ulp_of(np.maximum(row_scale(exact), np.abs(exact)), form)
