"""A wrapper allocates where its inputs are, and names no device of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from verifier.cases.plan import Plan
from verifier.checks.support.session import Session
from verifier.execution.backend import Backend, Power
from verifier.execution.backends import can
from verifier.execution.call_subject import execute
from verifier.ops import Op
from verifier.records.case import Case
from verifier.records.observation import Observation
from verifier.records.subject import Subject
from verifier.records.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from verifier.machine.in_force import MachineSession

NAME = "device"
ORDER = 120
DEMANDS = (
    "with two devices and the inputs on the second one, the wrapper makes no tensor on another device than "
    "that of the inputs"
)
WHY = (
    "'cuda' means the current device: with inputs on a second GPU, the kernel computes on memory of the "
    "first one, or not at all"
)
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
        share=0.3,
    )


def skips(_subject: Subject, _op: Op, _dtype: str, backend: str) -> str | None:
    """Apply where factory calls are redirected, hence seen."""
    if can(backend, Power.WATCHES):
        return None
    return f"only the machine sees which device a wrapper names; {backend} does not"


def check(session: Session) -> list[Outcome]:
    """Look for factory calls that name a device."""
    backward = bool(session.op.differentiable) and session.subject.differentiable
    seen = session.execute(experiment="verifier.checks.device:experiment", gradients=backward)
    named = seen.found_as(NamedDevices).calls
    if not named:
        return [Outcome(verdict=Verdict.PASS, decided=1)]
    calls = ", ".join(f"{name}(device={device!r})" for name, device in named)
    message = f"device: the wrapper names a device of its own, not its inputs': {calls}"
    return [Outcome(verdict=Verdict.FAIL, output="device", message=message, decided=1, wrong=1)]


@dataclass(frozen=True, kw_only=True)
class NamedDevices:
    """Factory calls that name a device which is not the inputs', each with that device."""

    calls: tuple[tuple[str, str], ...]


def experiment(subject: Subject, case: Case, *, backend: Backend, gradients: bool) -> Observation:
    """Execute with the inputs on the second of two devices, and the first one current; runs in the child."""
    from verifier.machine import current

    playing = current()
    assert playing is not None
    with _second_of_two(playing) as home:
        seen = execute(subject, case, backend=backend, gradients=gradients)
    named = {(name, device) for name, device in playing.redirected if device.startswith("cuda")}
    elsewhere = sorted(call for call in named if call[1] != str(home))
    if seen.status != "ok" and not elsewhere:
        return seen
    # What failed with tensors on two devices failed because of that.
    found = NamedDevices(calls=tuple(elsewhere))
    return replace(seen, status="ok", message="", detail="", damage=(), found=found)


@contextmanager
def _second_of_two(playing: MachineSession) -> Iterator[torch.device]:
    usual = playing.devices, playing.current_device, playing.home
    playing.devices, playing.current_device, playing.home = 2, 0, torch.device("cuda", 1)
    try:
        yield playing.home
    finally:
        playing.devices, playing.current_device, playing.home = usual
