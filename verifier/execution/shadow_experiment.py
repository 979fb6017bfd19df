"""Runs a subject on the machine with a shadow for every float; called in the child process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from verifier.execution.backend import Backend
from verifier.execution.shadow_run import execute_with_shadows, shadow_session
from verifier.records.case import Case
from verifier.records.observation import Observation
from verifier.records.subject import Subject

if TYPE_CHECKING:
    from verifier.machine.in_force import MachineSession
    from verifier.machine.shadow.slots import Counters, ShadowArithmetic

_LANES = 2048
"""Lanes of a wave: few enough for shadows of many parts to stay within the processor's cache."""


def run_with_arithmetic(
    subject: Subject,
    case: Case,
    *,
    backend: Backend,
    arithmetic: ShadowArithmetic,
    gradients: bool,
    given: bool = False,
    lanes: int = _LANES,
) -> tuple[Observation, MachineSession]:
    """Execute a case in a session of its own; its shadows are at `MachineSession.slots`.

    gradients: run the backward pass too. given: tell the arithmetic which tensors are data, so that whatever
    has no shadow later has lost it.
    """
    shadows = {n: np.zeros(tuple(t.shape), arithmetic.dtype) for n, t in case.given.items() if t.numel()}
    with shadow_session(arithmetic, lanes=lanes) as opened:
        seen, _ = execute_with_shadows(
            subject, case, given=shadows if given else {}, backend=backend, opened=opened, gradients=gradients
        )
        return seen, opened


def lost(counters: Counters, *, with_lines: bool = True) -> str:
    """Return where shadows were lost, in words; empty if nowhere. with_lines: name lines of the source."""
    reasons = []
    if counters.desynchronised:
        reasons.append(f"{counters.desynchronised} values were changed as integers, by bits or by atomics")
    if counters.broken:
        lines = f" at {', '.join(sorted(counters.broken)[:4])}" if with_lines else ""
        reasons.append(f"integer operations on floats{lines}")
    if counters.uncovered:
        reasons.append(f"torch operations without a rule: {', '.join(sorted(counters.uncovered))}")
    return "; ".join(reasons)
