"""The same call gives the same bits, in whatever order the device serves its blocks."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace

from verifier.cases.plan import Plan
from verifier.checks.support.bits import demanded, differing
from verifier.checks.support.multiplied_again import ANEW, made_differently
from verifier.checks.support.session import Session
from verifier.execution.backend import Backend, Power
from verifier.execution.call_subject import execute
from verifier.ops import Op
from verifier.records.case import Case
from verifier.records.observation import Deviation, Observation
from verifier.records.subject import Subject
from verifier.records.verdict import Outcome

NAME = "determinism"
GUARANTEE = "the same bits in every run and every order of blocks, and where a backward pass recomputes them"
ORDER = 70
DEMANDS = (
    "where determinism is guaranteed, repeated runs and other orders of blocks give the same bits, and a "
    "backward pass that recomputes what its forward pass multiplied by a matrix gets the same bits"
)
WHY = "atomic additions of floats, and buffers shared under a lock, add in whatever order threads arrive"
CATCHES = ("sums_in_random_order",)

RUNS = 3
"""Two orders besides the first: two orders of three rows agree by chance in one case of six."""


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
        reaching=True,
        share=0.6,
    )


def check(session: Session) -> list[Outcome]:
    """Compare the bits of several runs."""
    backward = bool(session.op.differentiable) and session.subject.differentiable
    seen = session.execute(experiment="verifier.checks.determinism:experiment", gradients=backward)
    found = seen.found_as(RepeatedRuns)
    return demanded(
        session.subject, NAME, found.deviations, holds="bits equal over runs", broken=found.broken
    )


@dataclass(frozen=True, kw_only=True)
class RepeatedRuns:
    """How results of several runs differ; broken: the same in a few words."""

    deviations: tuple[Deviation, ...]
    broken: str = "bits differ over runs"


def experiment(subject: Subject, case: Case, *, backend: Backend, gradients: bool) -> Observation:
    """Execute several times, each in another order of blocks where the backend allows it; in the child."""
    varies = Power.VARIES in backend.powers
    first: Observation | None = None
    found: dict[str, Deviation] = {}
    for number in range(RUNS):
        with backend.varied(schedule_seed=number) if varies and number else nullcontext():
            seen = execute(subject, case, backend=backend, gradients=gradients)
        if seen.status != "ok":
            return seen
        first = first or seen
        words = f"between run 1 and run {number + 1} of the same call"
        for name in seen.outputs:
            message = differing(name, first.outputs, seen.outputs, words)
            if message is not None:
                found.setdefault(name, Deviation(name, message))
    assert first is not None
    compared = RepeatedRuns(deviations=tuple(found.values()))
    if gradients and not found and (other := made_differently(subject, case, backend=backend)):
        compared = RepeatedRuns(deviations=(other,), broken=f"{ANEW} has other bits")
    return replace(first, damage=(), found=compared)
