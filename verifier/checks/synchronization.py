"""Threads and blocks touch nothing that another may be writing, and never wait for each other in vain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from verifier.cases.plan import Plan
from verifier.checks.support.session import Session, StoppedError
from verifier.execution.backend import Backend, Power
from verifier.execution.backends import can
from verifier.execution.call_subject import execute
from verifier.ops import Op
from verifier.records.case import Case
from verifier.records.observation import Observation
from verifier.records.subject import Subject
from verifier.records.verdict import Outcome, Verdict

NAME = "synchronization"
ORDER = 110
DEMANDS = (
    "in several orders of blocks, the kernel has no race in shared or global memory, no barrier in a branch"
    " that only some threads take, and no deadlock"
)
WHY = (
    "a kernel that lacks a barrier gives right results on the developer's device and in every run of the "
    "tests"
)
CATCHES = (
    "lost_updates_triton",
    "lock_kept_cuda",
    "barrier_forgotten_cuda",
    "barrier_in_a_loop_cuda",
    "barrier_of_each_warp_cuda",
    "slots_of_cluster_in_use_cuda",
    "own_results_by_read_only_cache_cuda",
)

MOST_REACHING, FEW_ROWS = 3, 3
"""Lengths of long rows that reach other kernels, most first: each has its own barriers; and rows."""
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
        share=0.4,
        reaching=True,
        most_reaching=MOST_REACHING,
        reaching_rows=FEW_ROWS,
    )


def skips(_subject: Subject, _op: Op, _dtype: str, backend: str) -> str | None:
    """Apply where every access can be watched."""
    if can(backend, Power.WATCHES):
        return None
    return f"only the machine sees who touches memory when; {backend} does not"


def check(session: Session) -> list[Outcome]:
    """Run under the race sanitizers; what the machine finds otherwise is no matter of this check."""
    backward = bool(session.op.differentiable) and session.subject.differentiable
    try:
        session.execute(experiment="verifier.checks.synchronization:experiment", gradients=backward)
    except StoppedError as stopped:
        kind = stopped.outcome.machine_finding
        if stopped.outcome.verdict is Verdict.UNDECIDED:  # no other case has the barriers of this one
            raise StoppedError(replace(stopped.outcome, doubtful=True), stopped.detail) from None
        if kind not in KINDS:
            raise
        message = f"{kind}: {stopped.outcome.message}"
        failed = Outcome(verdict=Verdict.FAIL, output=kind, message=message, decided=1, wrong=1)
        raise StoppedError(failed, stopped.detail) from None
    return [Outcome(verdict=Verdict.PASS, decided=1)]


def experiment(subject: Subject, case: Case, *, backend: Backend, gradients: bool) -> Observation:
    """Execute in order and in other orders, every access watched; runs in the child."""
    *_, last = watched_runs(subject, case, backend=backend, gradients=gradients)
    return last


def watched_runs(
    subject: Subject, case: Case, *, backend: Backend, gradients: bool, sanitize: frozenset[str] = SANITIZERS
) -> Iterator[Observation]:
    """Yield a run in each order, every access watched, as far as they end well."""
    for seed in ORDERS:
        with backend.varied(schedule_seed=seed, sanitize=sanitize):
            seen = execute(subject, case, backend=backend, gradients=gradients)
        yield seen
        if seen.status != "ok":
            return
