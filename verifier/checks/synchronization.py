"""Threads and blocks touch nothing that another may be writing, and never wait for each other in vain."""

from __future__ import annotations

import re
from dataclasses import replace
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
CATCHES = ("lost_updates_triton",)

KINDS = frozenset(
    {"shared_race", "global_race", "divergent_barrier", "divergent_collective", "deadlock", "step_limit"}
)
"""What the machine finds of this kind; the rest belongs to `memory`."""
SANITIZERS = frozenset({"shared_races", "global_races"})


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
        seen = session.execute(experiment="verifier.checks.synchronization:experiment", gradients=backward)
    except StoppedError as stopped:
        if stopped.outcome.facts.get("machine_finding") not in KINDS:
            raise
        kind = str(stopped.outcome.facts["machine_finding"])
        message = f"{kind}: {stopped.outcome.message}"
        failed = Outcome(verdict=Verdict.FAIL, output=kind, message=message, decided=1, wrong=1)
        raise StoppedError(failed, stopped.detail) from None
    passed = Outcome(verdict=Verdict.PASS, decided=1, facts={"watched": seen.facts["watched"]})
    missing = SANITIZERS - set(seen.facts["watched"])
    notes = [f"not watched for {name.replace('_', ' ')}: {COPIES[name]}" for name in sorted(missing)]
    return [passed, *(Outcome(verdict=Verdict.SKIPPED, message=n, facts={"measured": n}) for n in notes)]


COPIES = {
    "shared_races": "threads store their copies of one value to one word at once",
    "global_races": "warps that hold copies of an element read it while its owner writes it",
}
"""What a compiler does where there are more threads than elements: no result depends on it."""


def experiment(subject: Subject, case: Case, *, place: Any, gradients: bool) -> Observation:
    """Execute in order and in another order, every access watched; runs in the child."""
    seen = Observation(status="ok")
    watched = SANITIZERS
    for seed in (None, 1):
        seen = _watched(subject, case, place, gradients, seed, watched)
        while (harmless := _harmless(subject, seen)) & watched:
            watched -= harmless
            seen = _watched(subject, case, place, gradients, seed, watched)
        if seen.status != "ok":
            break
    return replace(seen, facts={**seen.facts, "watched": sorted(watched)})


def _watched(  # noqa: PLR0917 (an experiment's state)
    subject: Subject, case: Case, place: Any, gradients: bool, seed: int | None, watched: frozenset[str]
) -> Observation:
    with place.varied(schedule_seed=seed, sanitize=watched):
        return execute(subject, case, place=place, gradients=gradients)


def _harmless(subject: Subject, seen: Observation) -> frozenset[str]:
    """Return the sanitizer whose finding is about copies of one value, which the compiler made.

    Where fewer elements than threads are reduced or loaded, Triton gives lanes and warps copies of them. All
    store their copy of a sum to the same shared word (rounded differently after contraction or merges), and
    all load an element that one of them then overwrites.
    """
    kind = seen.facts.get("machine_finding")
    if kind == "shared_race" and "at once" in seen.message:
        return frozenset({"shared_races"})
    if kind == "global_race" and subject.language == "triton" and _within_one_block(seen.message):
        return frozenset({"global_races"})
    return frozenset()


def _within_one_block(message: str) -> bool:
    """Whether a block overwrites what another warp of the same block read."""
    from verifier.machine import current

    reader = re.search(r"writes byte .* read by block (\d+) warp", message)
    writer = re.search(r"block \((\d+), (\d+), (\d+)\)", message)
    playing = current()
    if reader is None or writer is None or playing is None or not playing.launches:
        return False
    x, y, z = (int(part) for part in writer.groups())
    wide, high, _ = playing.launches[-1][1]
    return int(reader.group(1)) == x + wide * (y + high * z)
