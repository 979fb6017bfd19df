"""Which variance algorithm compiled code has, proved for a small shape: no guess from its results."""

from __future__ import annotations

from dataclasses import dataclass

from strategies.values import Values
from verifier.cases.recipe import Recipe, build
from verifier.checks.support.certify import certified
from verifier.commands.describing.claims import contraction
from verifier.commands.describing.language import PLACE
from verifier.execution import Runner
from verifier.ops import op
from verifier.records.certificate import Certificate
from verifier.records.subject import Subject

ROWS, COLUMNS = 4, 64
MOST = 3
"""Algorithms that are tried; the recording and the comparison of one take a second or two."""


@dataclass(frozen=True, kw_only=True)
class ReadAlgorithm:
    """An algorithm that the code was proved to have at a shape. depth: of its deepest sum."""

    variance: str
    depth: int

    @property
    def text(self) -> str:
        """Say what was read, and for which shape."""
        return (
            f"{self.variance} was read from the compiled code at {ROWS}x{COLUMNS}, for all inputs of that "
            f"shape; no term of its sums meets more than {self.depth} additions there (any order: up to "
            f"{COLUMNS - 1})"
        )


def read_algorithm(
    declared: Subject, runner: Runner, dtype: str, guesses: tuple[str, ...]
) -> ReadAlgorithm | None:
    """Return the algorithm that the code is proved to have, or None where nothing is proved.

    declared: the function with all else that is claimed. guesses: algorithms, the likeliest first.
    """
    if runner.backend != PLACE or not op(declared.op).needs_variance:
        return None
    recipe = Recipe(rows=ROWS, columns=COLUMNS, weight=Values(seed=1), bias=Values(seed=2))
    case = build(op(declared.op), declared, dtype, recipe, gradients=False)
    if case is None:
        return None
    for name in guesses[:MOST]:
        claimed = declared.differing(
            variance=name, mean_contraction=contraction(declared), divide_by_n="either"
        )
        found = certified(claimed, case, runner=runner)
        if isinstance(found, Certificate):
            depths = [one.depth for proof in found.proofs for one in proof.sums]
            return ReadAlgorithm(variance=name, depth=max(depths, default=0))
    return None
