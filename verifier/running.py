"""Runs a subject with a running error bound beside its compiled code."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from verifier.arithmetic import Array
from verifier.beside import lost, run_beside
from verifier.case import Case
from verifier.runner.observation import Observation
from verifier.subjects import Subject

_LANES = 8192
"""Lanes of a wave, as without slots: one float64 beside a register is no burden."""


_WHOLE = 1 << 20
"""Roundings of 1/k up to this k are reciprocals, or a decimal such as an eps of 1e-6."""


def bounds(subject: Subject, case: Case, *, place: Any, gradients: bool) -> Observation:
    """Execute with error bounds: `<name>|bound` beside every output; called in the child.

    The fact `constants` lists what the code may hold of a polynomial (see `may_be_a_coefficient`).
    """
    from verifier.machine.arithmetics.ball import Ball

    constants: set[float] = set()

    class Remembering(Ball):
        """A ball arithmetic that keeps the single numbers that it is shown: literals and arguments."""

        def lift(self, values: Array, kind: str) -> Array:
            if np.size(values) == 1 and kind != "integer":
                constants.add(float(np.asarray(values, dtype=np.float64).reshape(-1)[0]))
            found: Array = super().lift(values, kind)
            return found

    seen = _beside(subject, case, Remembering(given=True), "bound", place=place, gradients=gradients)
    return replace(seen, facts={**seen.facts, "constants": sorted(filter(may_be_a_coefficient, constants))})


def may_be_a_coefficient(number: float) -> bool:
    """Return whether a float32 may belong to a polynomial that is right to float32's accuracy and no further.

    Numbers of at most 8 binary digits, reciprocals of whole numbers and the constants with which compilers
    make exponentials and logarithms do not.
    """
    from verifier.machine.arithmetics.lifted import LITERALS

    if not math.isfinite(number) or number == 0 or number in LITERALS:
        return False
    short = math.frexp(number)[0] * 2.0**8
    whole = round(min(abs(1.0 / number), 2.0 * _WHOLE))
    reciprocal = 0 < whole <= _WHOLE and float(np.float32(1.0 / whole)) == abs(number)
    return short != round(short) and number != round(number) and not reciprocal


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
