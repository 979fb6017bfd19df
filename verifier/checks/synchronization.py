"""Threads and blocks touch nothing that another may be writing, and never wait for each other in vain."""

from __future__ import annotations

from typing import Any

from verifier.case import Case
from verifier.checks import Session, StoppedError
from verifier.ops import Op
from verifier.recipes import Plan
from verifier.runner.execute import execute
from verifier.runner.observation import Observation
from verifier.subjects import Subject
from verifier.verdicts import Outcome, Verdict

NAME = "synchronization"
ORDER = 110
DEMANDS = "no race in shared or global memory, no divergent barrier, no deadlock, in several orders of blocks"
WHY = "a missing barrier is right on the developer's device and in every run of the tests"
CATCHES = (
    "lost_updates_triton",
    "lock_kept_cuda",
    "barrier_forgotten_cuda",
    "barrier_in_a_loop_cuda",
)

KINDS = frozenset(
    {"shared_race", "global_race", "divergent_barrier", "divergent_collective", "deadlock", "step_limit"}
)
"""What the machine finds of this kind; the rest belongs to `memory`."""
SANITIZERS = frozenset({"shared_races", "global_races"})
ORDERS = (None, 1)
"""Orders in which blocks are served: that of their numbers, and a random one."""


def plan(subject: Subject, op: Op) -> Plan:
    """Ask for small inputs of several rows: sanitizers watch every access."""
    return Plan(
        gradients=subject.differentiable or not op.differentiable,
        hazards=("ordinary",),
        joint=False,
        max_elements=4800,
        min_rows=1,
        min_columns=1,
        eps=(1e-5,),
    )


def skips(subject: Subject, op: Op, dtype: str, backend: str) -> str | None:
    """Apply where every access can be watched."""
    del subject, op, dtype
    if backend == "machine":
        return None
    return f"only the machine sees who touches memory when; {backend} does not"


def check(session: Session) -> list[Outcome]:
    """Run under the race sanitizers; what the machine finds otherwise is no matter of this check."""
    backward = bool(session.op.differentiable) and session.subject.differentiable
    try:
        session.execute(experiment="verifier.checks.synchronization:experiment", gradients=backward)
    except StoppedError as stopped:
        if stopped.outcome.facts.get("machine_finding") not in KINDS:
            raise
        kind = str(stopped.outcome.facts["machine_finding"])
        message = f"{kind}: {stopped.outcome.message}"
        failed = Outcome(verdict=Verdict.FAIL, output=kind, message=message, decided=1, wrong=1)
        raise StoppedError(failed, stopped.detail) from None
    facts = {"watched": sorted(SANITIZERS), "orders": len(ORDERS)}
    return [Outcome(verdict=Verdict.PASS, decided=1, facts=facts)]


def experiment(subject: Subject, case: Case, *, place: Any, gradients: bool) -> Observation:
    """Execute in order and in other orders, every access watched; runs in the child."""
    seen = Observation(status="ok")
    for seed in ORDERS:
        with place.varied(schedule_seed=seed, sanitize=SANITIZERS):
            seen = execute(subject, case, place=place, gradients=gradients)
        if seen.status != "ok":
            break
    return seen
