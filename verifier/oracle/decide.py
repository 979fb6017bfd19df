"""Verdicts on results: from float64 or double-double to Arb of growing precision, rung by rung."""

from __future__ import annotations

import numpy as np

from verifier.arithmetic.formats import Array
from verifier.oracle.climb import Decision, climb
from verifier.oracle.problem import Problem, Solution

__all__ = ["Decision", "decide"]


def decide(
    problem: Problem[Solution],
    output_name: str,
    actual: Array,
    bound: Array,
    *,
    solution: Solution | None = None,
) -> Decision:
    """Return, for each element, whether |actual - exact| <= bound is proved, refuted or open.

    actual: float64, in the shape of that output of `solve`; bound: broadcastable to it.
    solution: what `solve(problem)` returned, if it is at hand. Only rows with open elements climb
    (every row, for gradients of parameters). Elements without an exact value stay undecided:
    non-finite inputs, and rows with variance + eps <= 0.

    Raises:
        ValueError: an output without exact values (no grad_output), or shapes that do not fit.

    """
    enclosure = (solution or problem.solve()).enclosures.get(output_name)
    if enclosure is None:
        raise ValueError(f"the problem has no {output_name}: no grad_output, or no input")
    if np.shape(actual) != enclosure.shape:
        raise ValueError(f"{output_name} has shape {enclosure.shape}, actual {np.shape(actual)}")
    return climb(actual, bound, problem.rungs(output_name, enclosure))
