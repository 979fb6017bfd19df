"""Fills what masked loads leave undefined, and compares results: whether any depends on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from verifier.checks.support.bits import bit_numbers, comparable
from verifier.checks.support.session import Session
from verifier.execution.backend import Backend
from verifier.execution.call_subject import execute
from verifier.machine.model import MaskedFill
from verifier.records.case import Case
from verifier.records.observation import Deviation, Observation
from verifier.records.subject import Subject

FILLS = {"nan": "NaN", "finite": "a negative number", "positive": "a positive number"}
"""A maximum swallows NaN and large negative numbers, a minimum NaN and large positive ones."""
MOST_LINES = 4
"""Loads that are filled alone, to find the one that matters: each is compiled once more."""
_NEVER_ENDING = frozenset({"step_limit"})
"""What the machine finds of a loop as long as the fill: no result says yet that anything depends on it."""


@dataclass(frozen=True, kw_only=True)
class UndefinedLanes:
    """What depends on undefined lanes, and why what was not tried was not."""

    proved: tuple[Deviation, ...] = ()
    untried: tuple[str, ...] = ()


def compare_fills(
    session: Session, plain: Observation, lines: Sequence[str], *, gradients: bool
) -> UndefinedLanes:
    """Execute with each fill in undefined lanes, and compare bits of results.

    plain: an execution as the compiler left it. lines: file and line of the loads. What differs from it
    has to differ from a fill with zeros as well, which differs in a constant alone: another compilation
    may round differently, and then nothing depends on the fill.
    """
    filled = _Filled(session=session, gradients=gradients, plain=plain, lines=lines)
    for number in FILLS:
        seen = filled.run(number)
        if seen.status != "ok":
            return filled.of_failure(number, seen)
        if unfilled := seen.found_as(UnfilledLoads).lines:
            text = f"what lanes get that a mask leaves out could not be chosen (source {_listed(unfilled)})"
            return UndefinedLanes(untried=(text,))
        if any(_differ(name, seen, plain) for name in plain.outputs):
            return filled.of_difference(number, seen)
    return UndefinedLanes()


@dataclass(frozen=True, kw_only=True)
class UnfilledLoads:
    """Lines of loads of which lanes are undefined all the same."""

    lines: tuple[str, ...]


def experiment(
    subject: Subject, case: Case, *, backend: Backend, gradients: bool, number: str, line: str | None
) -> Observation:
    """Execute with a fill; runs in the child. Finds the loads that are undefined all the same."""
    with backend.varied(masked_fill=MaskedFill(number=number, place=line)):
        seen = execute(subject, case, backend=backend, gradients=gradients, poison="nan")
        return replace(seen, found=UnfilledLoads(lines=backend.unfilled()))


@dataclass(frozen=True, kw_only=True)
class _Filled:
    """One subject and case, as the compiler left it and with fills."""

    session: Session
    gradients: bool
    plain: Observation
    lines: Sequence[str]

    def run(self, number: str, line: str | None = None) -> Observation:
        return self.session.run(
            self.session.subject,
            self.session.case,
            experiment="verifier.checks.support.undefined_lanes:experiment",
            gradients=self.gradients,
            number=number,
            line=line,
        )

    @cached_property
    def zeros(self) -> Observation:
        return self.run("zero")

    def of_difference(self, number: str, seen: Observation) -> UndefinedLanes:
        """Say what depends on the fill, unless it only differs because it was compiled anew."""
        if self.zeros.status != "ok":
            return self._untried("zero", self.zeros)
        again = self.run(number)
        proved = [
            Deviation(name, self._words(name, number, seen))
            for name in self.plain.outputs
            if _differ(name, seen, self.plain)
            and _differ(name, seen, self.zeros)
            and not _differ(name, seen, again)
        ]
        return UndefinedLanes(proved=tuple(proved))

    def of_failure(self, number: str, seen: Observation) -> UndefinedLanes:
        """Say what came of a call that did not end well with a fill, though it did without."""
        found = seen.aftermath.machine_finding
        if seen.status != "crashed" or not found or found in _NEVER_ENDING or self.zeros.status != "ok":
            return self._untried(number, seen)
        where = self._where(lambda one: one.aftermath.machine_finding == found, number)
        text = f"with {FILLS[number]} in {where} the call ends with {seen.message}"
        return UndefinedLanes(proved=(Deviation("undefined lanes", f"undefined lanes: {text}"),))

    def _untried(self, number: str, seen: Observation) -> UndefinedLanes:
        words = {"zero": "zeros", **FILLS}[number]
        text = f"with {words} in lanes that a mask leaves out (source {_listed(self.lines)}): {seen.message}"
        return UndefinedLanes(untried=(text,))

    def _words(self, name: str, number: str, seen: Observation) -> str:
        where = self._where(lambda one: one.status == "ok" and _differ(name, one, self.zeros), number)
        filled, zeros = seen.outputs[name], self.zeros.outputs[name]
        if filled is None or zeros is None or not comparable(filled) or filled.shape != zeros.shape:
            return f"{name}: depends on {where}"
        places = (bit_numbers(filled) != bit_numbers(zeros)).reshape(-1).nonzero()[0]
        values = [t.flatten()[int(places[0])].item() for t in (filled, zeros)]
        return (
            f"{name}: {len(places)} of {filled.numel()} elements depend on {where}, first at flat index "
            f"{places[0]}: {values[0]} with {FILLS[number]} there, {values[1]} with zeros"
        )

    def _where(self, shows: Callable[[Observation], bool], number: str) -> str:
        """Name the loads of which each alone shows it; all of them if none does, or if there are many."""
        alone: list[str] = []
        if 1 < len(self.lines) <= MOST_LINES:
            alone = [line for line in self.lines if shows(self.run(number, line))]
        lines = _listed(alone or self.lines)
        return f"lanes that the mask of a load without other= leaves undefined (source {lines})"


def _differ(name: str, first: Observation, second: Observation) -> bool:
    """Whether a result of two runs has other bits, or another form."""
    a, b = first.outputs.get(name), second.outputs.get(name)
    if a is None or b is None:
        return a is not b
    if a.shape != b.shape or a.dtype != b.dtype:
        return True
    return bool((bit_numbers(a) != bit_numbers(b)).any()) if comparable(a) else not torch.equal(a, b)


def _listed(lines: Sequence[str]) -> str:
    more = len(lines) - MOST_LINES
    return ", ".join(lines[:MOST_LINES]) + (f" and {more} more" if more > 0 else "")
