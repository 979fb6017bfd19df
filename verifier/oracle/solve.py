"""The exact answer of a problem, with certified radii."""

from __future__ import annotations

from typing import TypeVar, get_args

from verifier.oracle.problem import Problem, Rung, Solution

Answered = TypeVar("Answered", bound=Solution)


def solve(problem: Problem[Answered], *, rung: Rung = "auto", bits: int | None = None) -> Answered:
    """Return the exact answer of a problem, enclosed.

    rung: "float64" (radius about 2**-50 relative to the terms), "double_double" (about 2**-100),
    "arb" (`bits` of precision), or "auto": float64, with Arb for the rows that it cannot do. A softmax
    is always answered in double-double; `decide` climbs to Arb.

    Raises:
        ValueError: shapes that do not fit, or an unknown rung.

    """
    if rung not in get_args(Rung):
        raise ValueError(f"no rung {rung!r}: float64, double_double, arb or auto")
    return problem.solve(rung, bits)
