"""The same call gives the same bits, in whatever order the device serves its blocks."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from verifier.case import Case
from verifier.checks import Session
from verifier.checks.comparing import demanded, differing
from verifier.ops import Op
from verifier.recipes import Plan
from verifier.runner.execute import execute
from verifier.runner.observation import Observation
from verifier.subjects import Subject
from verifier.verdicts import Outcome

NAME = "determinism"
ORDER = 70
DEMANDS = "bits equal over repeated runs, and over orders of blocks, where determinism is guaranteed"
WHY = "float atomics and buffers shared under a lock add in the order of the moment"
CATCHES = ("sums_in_random_order",)

RUNS = 3
"""Two orders beside the first: two orders of three rows agree by chance in one case of six."""


def plan(subject: Subject, op: Op) -> Plan:
    """Ask for numbers whose sums depend on their order, in several rows."""
    return Plan(
        gradients=subject.differentiable or not op.differentiable,
        hazards=("ordinary", "lognormal", "one_outlier"),
        joint=False,
        max_elements=4800,
        min_rows=1,
        min_columns=1,
        eps=(1e-5,),
    )


def skips(subject: Subject, op: Op, dtype: str, backend: str) -> None:
    """Apply to everything."""
    del subject, op, dtype, backend


def check(session: Session) -> list[Outcome]:
    """Compare the bits of several runs."""
    backward = bool(session.op.differentiable) and session.subject.differentiable
    seen = session.execute(experiment="verifier.checks.determinism:experiment", gradients=backward)
    found = seen.facts["differences"]
    return demanded(
        session.subject, NAME, found, holds="bits equal over runs", broken="bits differ over runs"
    )


def experiment(subject: Subject, case: Case, *, place: Any, gradients: bool) -> Observation:
    """Execute several times, each in another order of blocks where the place allows it; in the child."""
    vary = getattr(place, "varied", None)
    first: Observation | None = None
    found: dict[str, str] = {}
    for number in range(RUNS):
        with nullcontext() if vary is None or number == 0 else vary(schedule_seed=number):
            seen = execute(subject, case, place=place, gradients=gradients)
        if seen.status != "ok":
            return seen
        first = first or seen
        words = f"between run 1 and run {number + 1} of the same call"
        for name in seen.outputs:
            message = differing(name, first.outputs, seen.outputs, words)
            if message is not None:
                found.setdefault(name, message)
    assert first is not None
    facts = {**first.facts, "differences": list(found.values())}
    return Observation(status="ok", outputs=first.outputs, facts=facts)
