"""Verdicts on a row normalization: float64 first, then double-double, then Arb of growing precision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final, Literal

import numpy as np

from verifier.arithmetic import Array
from verifier.oracle.arb_rung import PARAMETER_GRADIENTS, ArbRung, take
from verifier.oracle.climb import Decision, Rung, climb
from verifier.oracle.enclosure import Enclosure, Mask
from verifier.oracle.normalization import solve
from verifier.oracle.problem import RowProblem, RowSolution, SoftmaxProblem, SoftmaxSolution
from verifier.oracle.softmax_arb import SoftmaxArb

__all__ = ["Decision", "OutputName", "decide"]

OutputName = Literal[
    "output", "normalized", "mean", "variance", "rstd", "grad_input", "grad_weight", "grad_bias", "total"
]
PRECISIONS: Final = (256, 512, 1024, 2048, 4096, 8192)
"""Bits of the Arb rungs. 8192 ends it: only an error equal to its bound to 2000 digits stays open."""


def decide(
    problem: RowProblem | SoftmaxProblem,
    output_name: OutputName,
    actual: Array,
    bound: Array,
    *,
    solution: RowSolution | SoftmaxSolution | None = None,
) -> Decision:
    """Return, for each element, whether |actual - exact| <= bound is proved, refuted or open.

    actual: float64, in the shape of that output of `solve`; bound: broadcastable to it.
    solution: what `solve(problem)` returned, if it is at hand. Only rows with open elements climb
    (every row, for gradients of parameters). Elements without an exact value stay undecided:
    non-finite inputs, and rows with variance + eps <= 0.

    Raises:
        ValueError: an output without exact values (no grad_output), or shapes that do not fit.

    """
    first = solution or solve(problem)
    enclosure: Enclosure | None = getattr(first, output_name)
    if enclosure is None:
        raise ValueError(f"the problem has no {output_name}: no grad_output, or no input")
    if np.shape(actual) != enclosure.shape:
        raise ValueError(f"{output_name} has shape {enclosure.shape}, actual {np.shape(actual)}")
    if isinstance(problem, SoftmaxProblem):
        return climb(actual, bound, _softmax_rungs(problem, output_name, enclosure))
    return climb(actual, bound, _rungs(problem, output_name, enclosure))


def _softmax_rungs(problem: SoftmaxProblem, name: OutputName, first: Enclosure) -> Iterator[tuple[str, Rung]]:
    yield "double_double", lambda still: first[still]
    exact = SoftmaxArb(problem, name)
    for bits in PRECISIONS:
        yield "arb", partial(exact.values, bits=bits)


def _rungs(problem: RowProblem, name: OutputName, first: Enclosure) -> Iterator[tuple[str, Rung]]:
    yield "float64", lambda still: first[still]
    exists = np.isfinite(first.high)
    yield "double_double", lambda still: _second(problem, name, still, exists)
    exact = ArbRung(problem, name, exists)
    for bits in PRECISIONS:
        yield "arb", partial(exact.values, bits=bits)


def _second(problem: RowProblem, name: OutputName, still: Mask, exists: Mask) -> Enclosure:
    """Return the open elements in double-double; rows of which none is open are left out."""
    if name in PARAMETER_GRADIENTS:
        return getattr(solve(problem, rung="double_double"), name)[still]  # type: ignore[no-any-return]
    open_rows = still.reshape(still.shape[0], -1).any(1)
    part = solve(take(problem, np.flatnonzero(open_rows)), rung="double_double")
    found: Enclosure = getattr(part, name)[still[open_rows]]
    hidden = np.where(exists[still], 0.0, np.nan)
    return replace(found, high=found.high + hidden)
