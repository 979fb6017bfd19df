"""Runs a subject on the machine with an arithmetic beside its floats; called in the child process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from verifier.case import Case
from verifier.lifting import ride, riding
from verifier.runner.observation import Observation
from verifier.subjects import Subject

if TYPE_CHECKING:
    from verifier.machine.sessions import Session
    from verifier.machine.slots import Counters

_LANES = 2048
"""Lanes of a wave: few enough for slots of many parts to stay within the processor's cache."""


def run_beside(
    subject: Subject,
    case: Case,
    *,
    place: Any,
    arithmetic: Any,
    gradients: bool,
    given: bool = False,
    lanes: int = _LANES,
) -> tuple[Observation, Session]:
    """Execute a case in a session of its own; its slots are at `Session.slots`.

    gradients: run the backward pass too. given: tell the arithmetic which tensors are data, so that whatever
    has no slot later has lost it.
    """
    slots = {n: np.zeros(tuple(t.shape), arithmetic.dtype) for n, t in case.given.items() if t.numel()}
    with riding(arithmetic, lanes=lanes) as opened:
        settings: dict[str, Any] = {"place": place, "opened": opened, "gradients": gradients}
        seen, _ = ride(subject, case, given=slots if given else {}, **settings)
        return seen, opened


def lost(counters: Counters) -> str:
    """Return where slots were lost, in words; empty if nowhere."""
    reasons = []
    if counters.desynchronised:
        reasons.append(f"{counters.desynchronised} values were changed as integers, by bits or by atomics")
    if counters.broken:
        reasons.append(f"integer operations on floats at {', '.join(sorted(counters.broken)[:4])}")
    if counters.uncovered:
        reasons.append(f"torch operations without a rule: {', '.join(sorted(counters.uncovered))}")
    return "; ".join(reasons)
