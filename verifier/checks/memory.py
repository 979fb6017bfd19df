"""A kernel writes what is its own, all of it, and reads nothing that nobody wrote."""

from __future__ import annotations

from typing import Any

import torch

from strategies.placement import BITS
from verifier.case import Case
from verifier.checks import Session
from verifier.ops import Op
from verifier.recipes import Plan
from verifier.runner.execute import execute
from verifier.runner.observation import Observation
from verifier.subjects import Subject
from verifier.verdicts import Outcome, Verdict

NAME = "memory"
ORDER = 50
DEMANDS = "red zones and inputs unchanged; results that do not depend on what fresh memory held before"
WHY = "stores one past the end, partial buffers that nobody zeroed, inputs overwritten in place"
CATCHES = ("writes_past_the_end", "reads_uninitialised_partials", "modifies_input")


def plan(subject: Subject, op: Op) -> Plan:
    """Ask for ordinary values, padded and not, at many extents."""
    return Plan(
        gradients=subject.differentiable or not op.differentiable,
        layouts=("contiguous", "padded_rows", "storage_offset"),
        hazards=("ordinary",),
        joint=False,
        max_elements=8192,
        eps=(1e-5,),
    )


def skips(subject: Subject, op: Op, dtype: str, backend: str) -> str | None:
    """Apply to everything."""
    del subject, op, dtype, backend
    return None


def check(session: Session) -> list[Outcome]:
    """Run with two poisons in fresh memory; compare bits, red zones and inputs."""
    backward = bool(session.op.differentiable) and session.subject.differentiable
    seen = session.execute(experiment="verifier.checks.memory:experiment", gradients=backward)
    messages = [*seen.damage, *seen.facts["uninitialised"]]
    if not messages and not any(t is not None and t.numel() for t in seen.outputs.values()):
        return []  # no element was compared
    if not messages:
        return [Outcome(verdict=Verdict.PASS, decided=1)]
    return [Outcome(verdict=Verdict.FAIL, output=m.split(":")[0].split(" ")[0], message=m) for m in messages]


def experiment(subject: Subject, case: Case, *, place: Any, gradients: bool) -> Observation:
    """Execute with NaN and with a finite pattern in fresh memory; runs in the child."""
    with_nan = execute(subject, case, place=place, gradients=gradients, poison="nan")
    if with_nan.status != "ok":
        return with_nan
    finite = execute(subject, case, place=place, gradients=gradients, poison="finite")
    if finite.status != "ok":
        return finite
    again = execute(subject, case, place=place, gradients=gradients, poison="nan")
    if again.status != "ok":
        return again
    found = [message for name in with_nan.outputs if (message := _compare(name, with_nan, finite, again))]
    damage = tuple(dict.fromkeys((*with_nan.damage, *finite.damage, *again.damage)))
    return Observation(
        status="ok", outputs=with_nan.outputs, damage=damage, facts={**with_nan.facts, "uninitialised": found}
    )


def _compare(name: str, nan: Observation, finite: Observation, again: Observation) -> str | None:
    """Say that a result depends on the poison, unless it differs from run to run anyway."""
    a, b, c = (seen.outputs.get(name) for seen in (nan, finite, again))
    if a is None and b is None and c is None:
        return None
    forms = [_form(t) for t in (a, b, c)]
    if a is None or b is None or c is None or len(set(forms)) > 1:
        words = ("NaN in fresh memory", "a finite pattern", "NaN again")
        seen = ", ".join(f"{form} with {word}" for form, word in zip(forms, words, strict=True))
        return f"{name}: shape or dtype differs from run to run: {seen}"
    if a.dtype not in _BITS:
        return None  # a result that is no number of a floating-point format; forward_error says so
    differs = bits(a) != bits(b)
    steady = bool(torch.equal(bits(a), bits(c)))
    if not bool(differs.any()):
        return None
    poisoned = torch.isnan(a) & ~torch.isnan(b)
    if not steady and not bool(poisoned.any()):
        return None
    count, first = int(differs.sum()), int(differs.flatten().nonzero()[0])
    return (
        f"{name}: {count} of {a.numel()} elements depend on what fresh memory held before "
        f"(unwritten output or uninitialised buffer), first at flat index {first}: "
        f"{a.flatten()[first].item()} with NaN there, {b.flatten()[first].item()} with a finite pattern"
    )


def _form(tensor: torch.Tensor | None) -> str:
    return "None" if tensor is None else f"{tuple(tensor.shape)} {tensor.dtype}"


_BITS = {getattr(torch, name): kind for name, kind in BITS.items()}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bit patterns of a tensor."""
    return tensor.contiguous().view(_BITS[tensor.dtype])
