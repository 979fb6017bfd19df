"""Compares what a subject computed with the certified truth, element by element, against the proved bound."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

from verifier.arithmetic.blocks import MOST, blocks, is_large
from verifier.arithmetic.formats import FORMATS, Array
from verifier.bounds.variance import Mask
from verifier.checks.support.truth import Truth
from verifier.checks.support.worst_element import Judged, ulp_of, worst_of
from verifier.ops.rows.compose_bounds import to_float64
from verifier.oracle.enclosure import Enclosure
from verifier.records.observation import Observation
from verifier.records.verdict import Outcome, Verdict, Worst

NO_VALUE = "the exact value is not finite"
"""Why an element with a bound is not judged: there is nothing to compare it with."""
STILL_OPEN = "an error lies between bound and radius of the exact value"
"""Why elements that a theorem covers are neither passed nor failed."""


def judge(truth: Truth, seen: Observation, names: tuple[str, ...]) -> list[Outcome]:
    """Judge the named outputs of an execution; leaves out those that are empty, missing or misshapen."""
    outcomes = []
    for name in names:
        actual = seen.outputs.get(name)
        if actual is None or name not in truth.exact or actual.numel() == 0:
            continue
        if actual.numel() != math.prod(truth.shape_of(name)) or format_of(actual) not in FORMATS:
            continue
        outcomes.append(judge_output(truth, name, actual))
    return outcomes


def format_of(tensor: torch.Tensor) -> str:
    """Return the name of a tensor's dtype; those in FORMATS can be judged."""
    return str(tensor.dtype).removeprefix("torch.")


def judge_output(truth: Truth, name: str, actual: torch.Tensor) -> Outcome:
    """Judge one output against its bound; every element is decided, covered by a theorem or counted."""
    case, exact = truth.case, truth.exact[name]
    values = truth.op.canonical(case, name, to_float64(actual))
    shape = values.shape
    low, high = (np.broadcast_to(e, shape) for e in exact.error_of(values))
    format_name = str(actual.dtype).removeprefix("torch.")
    if name not in truth.bounds:
        return _observed(truth, name, actual, values, low)
    bounded = truth.bounds[name]
    bound = np.broadcast_to(bounded.bound, shape)
    claimed = np.broadcast_to(bounded.covered, shape)
    covered = claimed & np.isfinite(np.broadcast_to(exact.high, shape))
    covered = covered & np.isfinite(bound)  # a bound that is not finite proves nothing, whoever made it
    failed = covered & ~(low <= bound)
    # A bound of zero (an argument that must not move, an empty sum) needs equality, which is no estimate.
    equal = (values == exact.high) & (exact.low == 0.0) & (exact.radius == 0.0)
    passed = covered & ((high <= bound) | equal)
    rungs: Mapping[str, int] = {}
    # The ladder climbs for the oracle's own results; what an op makes of them is certain enough.
    if truth.solved.decides(name) and not np.all(passed | failed | ~covered):
        passed, failed, low, high, rungs = _escalate(truth, name, values, bound, covered)
    rows = _Rows(exact, shape, format_name)
    worst = _worst(truth, name, values, low, bound, covered, rows)
    decided, wrong = int(np.sum(passed | failed)), int(np.sum(failed))
    # An element that stays open between bound and radius leaves the output without a pass.
    still_open = bool(np.any(covered & ~passed & ~failed))
    reasons = (
        *bounded.reasons,
        *((NO_VALUE,) if (claimed & ~covered).any() else ()),
        *((STILL_OPEN,) if still_open else ()),
    )
    verdict = Verdict.FAIL if wrong else Verdict.PASS if decided and not still_open else Verdict.NO_THEOREM
    mean_ulp, signed_ulp = _mean_ulps(values, covered, rows)
    return Outcome(
        verdict=verdict,
        output=name,
        worst=worst,
        decided=decided,
        wrong=wrong,
        uncovered=int(np.sum(~covered)),
        message=_message(name, wrong, values.size, reasons, complete=bool(covered.all()) and not still_open),
        mean_ulp=mean_ulp,
        signed_ulp=signed_ulp,
        rungs=rungs,
        reasons=reasons,
    )


def _escalate(
    truth: Truth, name: str, values: Array, bound: Array, covered: Mask
) -> tuple[Mask, Mask, Array, Array, Mapping[str, int]]:
    from verifier.oracle.decide import decide

    reach = np.where(covered, bound, np.inf)
    problem = truth.solved.problem
    assert problem is not None, "the oracle decides on what was posed to it"
    decision = decide(problem, name, values, reach, solution=truth.solved.solution)
    passed, failed = decision.passed & covered, decision.failed & covered
    return passed, failed, decision.error_low, decision.error_high, decision.rung_counts


def row_scale(expected: Array) -> Array:
    """Return the root mean square of each row; a vector is one row."""
    if expected.ndim < 2:
        return np.asarray(row_scale(expected[None, :])[0])
    with np.errstate(all="ignore"):
        step = max(1, MOST // max(1, expected.shape[1]))
        parts = [_scale_of_rows(expected[i : i + step]) for i in range(0, max(1, len(expected)), step)]
        return np.broadcast_to(parts[0] if len(parts) == 1 else np.concatenate(parts), expected.shape)


def _scale_of_rows(expected: Array) -> Array:
    largest = np.max(np.abs(expected), axis=1, keepdims=True, initial=0.0)
    scaled = expected / np.where(largest > 0, largest, 1.0)
    return np.asarray(largest * np.sqrt(np.mean(np.square(scaled), axis=1, keepdims=True)))


def _unit(scale: Array, expected: Array, format_name: str) -> Array:
    if not is_large(expected.shape):
        return ulp_of(np.maximum(scale, np.abs(expected)), format_name)
    found = np.empty(expected.shape)
    for tile in blocks((expected.shape[0], expected.shape[1])):
        found[tile] = ulp_of(np.maximum(scale[tile], np.abs(expected[tile])), format_name)
    return found


class _Rows:
    """What an output should be, and how large its rows are.

    expected, scale: the exact values and the root mean square of each row, in the shape of the output.
    unit: the unit in the last place of the larger of the two.
    """

    def __init__(self, exact: Enclosure, shape: tuple[int, ...], format_name: str) -> None:
        """Measure the rows of exact values."""
        self.format_name = format_name
        self.expected = np.broadcast_to(exact.high, shape)
        self.scale = row_scale(self.expected)
        with np.errstate(all="ignore"):
            self.unit = _unit(self.scale, self.expected, format_name)


def _worst(  # noqa: PLR0917
    truth: Truth, name: str, values: Array, error: Array, bound: Array, covered: Mask, rows: _Rows
) -> Worst:
    canonical, shape = truth.canonical_bounds.get(name), values.shape
    yard = None
    if canonical is not None:
        yard = np.broadcast_to(canonical.bound, shape), np.broadcast_to(canonical.covered, shape)
    found = worst_of(
        Judged(
            error=error,
            bound=bound,
            covered=covered,
            expected=rows.expected,
            scale=rows.scale,
            unit=rows.unit,
            yard=yard,
            format_name=rows.format_name,
        )
    )
    at = np.unravel_index(found.place, shape)
    return Worst(
        output=name,
        index=own_index(truth, name, found.place),
        actual=float(values[at]),
        expected=float(rows.expected[at]),
        error=max(float(error[at]), 0.0),
        bound=float(bound[at]) if found.some else math.nan,
        ulp=found.ulp,
        row_ulp=found.row_ulp,
        utilisation=found.utilisation if found.some else math.nan,
        canonical=found.canonical,
        nonzero_row_ulp=found.nonzero_row_ulp,
    )


def own_index(truth: Truth, name: str, place: int) -> tuple[int, ...]:
    """Return the index, in the output's own shape, of an element given by its place in canonical rows."""
    shape = truth.shape_of(name)
    flat = int(truth.op.flat_index(truth.case, name, shape).reshape(-1)[place])
    return tuple(int(i) for i in np.unravel_index(flat, shape or (1,)))


def _observed(truth: Truth, name: str, actual: torch.Tensor, values: Array, error: Array) -> Outcome:
    """Report errors of a subject that claims nothing: never PASS, never FAIL."""
    format_name = str(actual.dtype).removeprefix("torch.")
    nothing = np.zeros(values.shape, dtype=np.bool_)
    rows = _Rows(truth.exact[name], values.shape, format_name)
    worst = _worst(truth, name, values, error, np.full(values.shape, math.nan), nothing, rows)
    missing = "variance algorithm" if truth.op.needs_variance else "algorithm and no form"
    message = f"the subject declares no {missing}, so no bound applies"
    mean_ulp, signed_ulp = _mean_ulps(values, ~nothing, rows)
    return Outcome(
        verdict=Verdict.NO_THEOREM,
        output=name,
        worst=worst,
        uncovered=values.size,
        message=message,
        mean_ulp=mean_ulp,
        signed_ulp=signed_ulp,
    )


def _mean_ulps(values: Array, covered: Mask, rows: _Rows) -> tuple[float, float]:
    """Return the means of |error| and of the error in the unit of `row_ulp`, so that no mean exceeds it."""
    with np.errstate(all="ignore"):
        signed = (values - rows.expected) / rows.unit
        usable = covered & np.isfinite(signed)
        if not usable.any():
            return 0.0, 0.0
        chosen = signed[usable]
        return float(np.mean(np.abs(chosen))), float(np.mean(chosen))


def _message(name: str, wrong: int, size: int, reasons: tuple[str, ...], *, complete: bool) -> str:
    if wrong:
        return f"{name}: {wrong} of {size} elements are provably beyond the rounding-error bound"
    return "" if complete else f"{name}: {'; '.join(reasons)}"
