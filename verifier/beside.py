"""Runs a subject on the machine with an arithmetic beside its floats; called in the child process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from strategies.layouts import Layout
from verifier.case import Case
from verifier.runner.execute import execute
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
    from dataclasses import replace

    from verifier.machine import current, session

    playing = current()
    if playing is None:
        raise RuntimeError("arithmetics ride beside the machine; this process plays none")
    machine = replace(playing.machine, lanes_per_wave=lanes)
    with session(machine=machine, arithmetic=arithmetic) as opened:

        def put(layout: Layout, values: Any, **options: Any) -> Any:
            placed = layout.place(values, **options)
            if given and placed.tensor.is_floating_point() and placed.tensor.numel():
                assert opened.slots is not None
                zero = np.zeros((), dtype=arithmetic.dtype)
                opened.slots.set(placed.tensor, np.broadcast_to(zero, tuple(placed.tensor.shape)))
            return placed

        seen = execute(subject, case, place=place, gradients=gradients, placer=put)
        return seen, opened


def lost(counters: Counters) -> str:
    """Return where slots were lost, in words; empty if nowhere."""
    reasons = []
    if counters.desynchronised:
        reasons.append(f"{counters.desynchronised} values were changed bit by bit")
    if counters.broken:
        reasons.append(f"integer operations on floats at {', '.join(sorted(counters.broken)[:4])}")
    if counters.uncovered:
        reasons.append(f"torch operations without a rule: {', '.join(sorted(counters.uncovered))}")
    return "; ".join(reasons)
