"""Runs a subject whose floats have a running error bound, or a float64 value, as their shadow."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from verifier.arithmetic.formats import Array
from verifier.execution.backend import Backend
from verifier.execution.shadow_experiment import lost, run_with_arithmetic
from verifier.records.case import Case
from verifier.records.compiled_code import CompiledCode
from verifier.records.observation import Observation
from verifier.records.subject import Subject

if TYPE_CHECKING:
    from verifier.machine.execute.tuning import TunedKernel
    from verifier.machine.shadow.slots import ShadowArithmetic

Forced: TypeAlias = "tuple[TunedKernel, str] | None"
_LANES = 8192
"""Lanes of a wave, as without shadows: one float64 for a register is no burden."""


_WHOLE = 1 << 20
"""Roundings of 1/k up to this k are reciprocals, or a decimal such as an eps of 1e-6."""


@dataclass(frozen=True, kw_only=True)
class ShadowedRun:
    """What is known of a run with shadows.

    lost: where they were lost, in words; how_lost: the same without lines of the source. code: what is known
    of the code that was executed. constants: what the code may hold of a polynomial (see
    `may_be_a_coefficient`).
    """

    lost: str
    how_lost: str = ""
    code: CompiledCode | None = None
    constants: tuple[float, ...] = ()


def bounds(
    subject: Subject,
    case: Case,
    *,
    backend: Backend,
    gradients: bool,
    forced: Forced = None,
    processors: int | None = None,
) -> Observation:
    """Execute with error bounds: `<name>|bound` for every output; called in the child.

    forced: an autotuned kernel and the configuration that it runs (None: its first). processors: how many
    multiprocessors the device has (None: as many as ever).
    """
    from verifier.machine.shadow.arithmetics.ball import BallArithmetic

    constants: set[float] = set()

    class Remembering(BallArithmetic):
        """A ball arithmetic that keeps the single numbers that it is shown: literals and arguments."""

        def lift(self, values: Array, kind: str) -> Array:
            if np.size(values) == 1 and kind != "integer":
                constants.add(float(np.asarray(values, dtype=np.float64).reshape(-1)[0]))
            found: Array = super().lift(values, kind)
            return found

    seen = _run_with_shadows(
        subject, case, Remembering(given=True), "bound", backend=backend, gradients=gradients, forced=forced,
        processors=processors,
    )  # fmt: skip
    if seen.status != "ok":
        return seen
    suspects = tuple(sorted(filter(may_be_a_coefficient, constants)))
    return replace(seen, found=replace(seen.found_as(ShadowedRun), constants=suspects))


def may_be_a_coefficient(number: float) -> bool:
    """Return whether a float32 may belong to a polynomial that is right to float32's accuracy and no further.

    Numbers of at most 8 binary digits, reciprocals of whole numbers and the constants with which compilers
    make exponentials and logarithms do not.
    """
    from verifier.machine.shadow.arithmetics.lifted import LITERALS

    if not math.isfinite(number) or number == 0 or number in LITERALS:
        return False
    significand = math.frexp(number)[0] * 2.0**8
    whole = round(min(abs(1.0 / number), 2.0 * _WHOLE))
    reciprocal = 0 < whole <= _WHOLE and float(np.float32(1.0 / whole)) == abs(number)
    return significand != round(significand) and number != round(number) and not reciprocal


def unrounded(
    subject: Subject,
    case: Case,
    *,
    backend: Backend,
    gradients: bool,
    forced: Forced = None,
    processors: int | None = None,
) -> Observation:
    """Execute with float64 values: `<name>|unrounded` for every output; called in the child."""
    from verifier.machine.shadow.arithmetics.lifted import Lifted

    return _run_with_shadows(
        subject, case, Lifted(), "unrounded", backend=backend, gradients=gradients, forced=forced,
        processors=processors,
    )  # fmt: skip


def _run_with_shadows(
    subject: Subject,
    case: Case,
    arithmetic: ShadowArithmetic,
    word: str,
    *,
    backend: Backend,
    gradients: bool,
    forced: Forced,
    processors: int | None,
) -> Observation:
    given = word == "bound"
    with (
        nullcontext() if forced is None else backend.tuned(forced=forced),
        nullcontext() if processors is None else backend.varied(multiprocessors=processors),
    ):
        seen, opened = run_with_arithmetic(
            subject, case, backend=backend, arithmetic=arithmetic, gradients=gradients, given=given,
            lanes=_LANES,
        )  # fmt: skip
    if seen.status != "ok":
        return seen
    assert opened.slots is not None
    found = dict(seen.outputs)
    for name, tensor in seen.outputs.items():
        if tensor is not None and tensor.is_floating_point() and tensor.numel():
            shadows = opened.slots.get(tensor)
            found[f"{name}|{word}"] = torch.from_numpy(np.array(shadows, dtype=np.float64))
    counters = opened.slots.counters
    how = lost(counters, with_lines=False)
    known = ShadowedRun(lost=lost(counters), how_lost=how, code=seen.compiled)
    return Observation(status="ok", outputs=found, found=known)
