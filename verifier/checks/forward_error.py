"""Every element of the output lies within the proved rounding-error bound of the claimed algorithm."""

from __future__ import annotations

from verifier.checks import Session
from verifier.judge import judge
from verifier.ops import Op
from verifier.recipes import Plan
from verifier.subjects import Subject
from verifier.verdicts import Outcome

NAME = "forward_error"
ORDER = 10
DEMANDS = "|computed - exact| <= the proved bound for the declared algorithm, for every element of the output"
WHY = (
    "wrong formulas, dropped tails, narrow accumulation and unstable variances hide below guessed tolerances"
)
CATCHES = ("variance_over_n_minus_one", "eps_outside_root", "tail_dropped")


def plan(subject: Subject, op: Op) -> Plan:
    """Ask for every hazard in contiguous memory."""
    del subject, op
    return Plan()


def skips(subject: Subject, op: Op, dtype: str, backend: str) -> str | None:
    """Leave out raw backward ops, whose outputs are gradients."""
    del subject, dtype, backend
    return None if "output" in op.outputs else f"{op.name} returns gradients only; see gradient"


def check(session: Session) -> list[Outcome]:
    """Judge the output, and arguments that are results too (running statistics)."""
    seen, names = session.execute(), session.op.outputs
    return session.shape_outcomes(seen, names) or judge(session.truth, seen, names)
