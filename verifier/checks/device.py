"""A wrapper allocates where its inputs are, and names no device of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from verifier.case import Case
from verifier.checks import Session
from verifier.ops import Op
from verifier.recipes import Plan
from verifier.runner.execute import execute
from verifier.runner.observation import Observation
from verifier.subjects import Subject
from verifier.verdicts import Outcome, Verdict

NAME = "device"
ORDER = 120
DEMANDS = "no factory call that names a CUDA device, unless torch.cuda.device(...) of the inputs is in force"
WHY = "'cuda' is the current device: a second GPU computes on the first one's memory, or not at all"
CATCHES = ("device_named_triton",)


def plan(subject: Subject, op: Op) -> Plan:
    """Ask for few shapes: a wrapper has few paths."""
    return Plan(
        gradients=subject.differentiable or not op.differentiable,
        hazards=("ordinary",),
        joint=False,
        max_elements=8192,
        shapes=((4, 33), (2, 1000), (1, 1), (1, 4097), (129, 16), (0, 16)),
        eps=(1e-5,),
    )


def skips(subject: Subject, op: Op, dtype: str, backend: str) -> str | None:
    """Apply where factory calls are redirected, hence seen."""
    del subject, op, dtype
    if backend == "machine":
        return None
    return f"only the machine sees which device a wrapper names; {backend} does not"


def check(session: Session) -> list[Outcome]:
    """Look for factory calls that name a device."""
    backward = bool(session.op.differentiable) and session.subject.differentiable
    seen = session.execute(experiment="verifier.checks.device:experiment", gradients=backward)
    found = seen.facts["named"]
    if not found:
        return [Outcome(verdict=Verdict.PASS, decided=1)]
    calls = ", ".join(f"{name}(device={device!r})" for name, device in found)
    message = f"device: the wrapper names a device of its own, not its inputs': {calls}"
    return [Outcome(verdict=Verdict.FAIL, output="device", message=message, decided=1, wrong=1)]


class _Named(list[tuple[str, str]]):
    """Factory calls that named a device while no `torch.cuda.device(...)` was in force."""

    guards = 0

    def append(self, call: tuple[str, str], /) -> None:
        """Keep a call, unless the current device is the one that the wrapper chose."""
        if self.guards == 0:
            super().append(call)


def experiment(subject: Subject, case: Case, *, place: Any, gradients: bool) -> Observation:
    """Execute while factory calls are recorded; runs in the child."""
    from verifier.machine import current

    playing = current()
    assert playing is not None
    usual = playing.redirected
    named = playing.redirected = _Named()
    try:
        with _guards_counted(named):
            seen = execute(subject, case, place=place, gradients=gradients)
    finally:
        playing.redirected = usual
    if seen.status != "ok":
        return seen
    facts = {**seen.facts, "named": sorted(set(named))}
    return Observation(status="ok", outputs=seen.outputs, facts=facts)


@contextmanager
def _guards_counted(named: _Named) -> Iterator[None]:
    """Count the `torch.cuda.device` contexts that are in force."""
    usual = torch.cuda.device

    class Guard(usual):  # type: ignore[misc,valid-type]
        def __enter__(self) -> Any:
            named.guards += 1
            return super().__enter__()

        def __exit__(self, *error: object) -> Any:
            named.guards -= 1
            return super().__exit__(*error)

    torch.cuda.device = Guard  # type: ignore[misc]
    try:
        yield
    finally:
        torch.cuda.device = usual  # type: ignore[misc]
