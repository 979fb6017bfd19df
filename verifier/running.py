"""Runs a subject with a running error bound beside its compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from verifier.beside import lost, run_beside
from verifier.case import Case
from verifier.runner.observation import Observation
from verifier.subjects import Subject

_LANES = 8192
"""Lanes of a wave, as without slots: one float64 beside a register is no burden."""


def bounds(subject: Subject, case: Case, *, place: Any, gradients: bool) -> Observation:
    """Execute with error bounds: `<name>|bound` beside every output; called in the child."""
    from verifier.machine.arithmetics.ball import Ball

    return _beside(subject, case, Ball(given=True), "bound", place=place, gradients=gradients)


def unrounded(subject: Subject, case: Case, *, place: Any, gradients: bool) -> Observation:
    """Execute with float64 values: `<name>|unrounded` beside every output; called in the child."""
    from verifier.machine.arithmetics.lifted import Lifted

    return _beside(subject, case, Lifted(), "unrounded", place=place, gradients=gradients)


def _beside(
    subject: Subject, case: Case, arithmetic: Any, word: str, *, place: Any, gradients: bool
) -> Observation:
    given = word == "bound"
    seen, opened = run_beside(
        subject, case, place=place, arithmetic=arithmetic, gradients=gradients, given=given, lanes=_LANES
    )
    if seen.status != "ok":
        return seen
    assert opened.slots is not None
    found = dict(seen.outputs)
    for name, tensor in seen.outputs.items():
        if tensor is not None and tensor.is_floating_point() and tensor.numel():
            slots = opened.slots.get(tensor)
            found[f"{name}|{word}"] = torch.from_numpy(np.array(slots, dtype=np.float64))
    facts = {"lost": lost(opened.slots.counters), "code": seen.facts.get("compiled")}
    return Observation(status="ok", outputs=found, facts=facts)
