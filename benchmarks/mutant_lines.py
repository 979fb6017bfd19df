"""The lines of audits of many mutants, as tasks for workers: what kills soonest comes first.

A task is one check with one dtype of one mutant with one budget, or its usual tests. All mutants take turns:
each is asked its first line, then those that live their second. A mutant that is killed is asked no more.
With a second budget each mutant is first asked the line that killed it with the first one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from usual_tests import usual_tests

from verifier.audit.mutation.family import copied
from verifier.audit.mutation.kills import Fate, Question, fate_of_copy
from verifier.audit.mutation.mutation import Mutation

Asked = tuple[str, ...]
"""The names of a subject, a check and a dtype."""
USUAL: Asked = ("usual tests",)


def judged(
    path: str, mutation: Mutation | None, question: Question, asked: Asked, scratch: str
) -> tuple[Fate, tuple[str, ...]]:
    """Ask one line of a mutant (of the original without one), or the usual tests."""
    if asked == USUAL:
        return Fate(mutation=mutation), usual_tests(path, mutation)
    subject, check, dtype = asked
    copy = _copy(Path(path), mutation, Path(scratch))
    return fate_of_copy(copy, mutation, question, only=(subject, check, dtype)), ()


def _copy(path: Path, mutation: Mutation | None, scratch: Path) -> Path:
    """Return the mutated file, at one place for all lines: what was compiled is known by its path."""
    folder = scratch / hashlib.sha256(f"{path} {mutation!r}".encode()).hexdigest()[:24]
    if not folder.exists():
        part = folder.with_name(f"{folder.name}-{os.getpid()}")
        part.mkdir()
        copied(path, part, mutation)
        with suppress(OSError):  # another worker was first
            part.rename(folder)
        shutil.rmtree(part, ignore_errors=True)
    return folder / path.name


@dataclass(kw_only=True)
class Progress:
    """What is known of one mutant with one budget."""

    lines: tuple[Asked, ...]
    done: set[Asked] = field(default_factory=set)
    killed_by: Asked | None = None
    code: set[str] = field(default_factory=set)
    places: set[tuple[Any, ...]] = field(default_factory=set)

    @property
    def ended(self) -> bool:
        """Whether it is killed, or every line was asked."""
        return self.killed_by is not None or self.done >= set(self.lines)

    def take(self, record: Mapping[str, Any]) -> None:
        """Take what a record of the file says of it."""
        asked = tuple(record["asked"])
        self.done.add(asked)
        self.code |= set(record.get("code", ()))
        self.places |= {tuple(place) for place in record.get("lines", ())}
        if record.get("kills") and self.killed_by is None:
            self.killed_by = asked


@dataclass(kw_only=True)
class Schedule:
    """Which line of which mutant is asked next.

    originals: the numbers that are no mutants: all their lines are asked, at the end. known: by number and
    budget. usual: numbers whose usual tests were made.
    """

    budgets: Sequence[str]
    originals: Sequence[int]
    mutants: Sequence[int]
    known: dict[tuple[int, str], Progress]
    usual: set[int] = field(default_factory=set)

    def tasks(self) -> Iterator[tuple[int, str, Asked]]:
        """Yield number, budget and line, in the light of what is known when each is asked for."""
        for place, budget in enumerate(self.budgets):
            yield from self._in_turn(self._by_need(place), budget)
        yield from ((n, self.budgets[0], USUAL) for n in self.mutants if n not in self.usual)
        for budget in self.budgets:
            yield from self._all_of(self.originals, budget)

    def _all_of(self, numbers: Sequence[int], budget: str) -> Iterator[tuple[int, str, Asked]]:
        for number in numbers:
            progress = self.known[number, budget]
            yield from ((number, budget, asked) for asked in progress.lines if asked not in progress.done)

    def _by_need(self, place: int) -> list[int]:
        """Return the mutants, those first that the budget before did not kill in code of their own."""
        if place == 0:
            return list(self.mutants)
        return sorted(self.mutants, key=lambda number: self._before(number, place) is None, reverse=True)

    def _before(self, number: int, place: int) -> Asked | None:
        earlier = (self.known[number, budget].killed_by for budget in self.budgets[:place])
        return next((asked for asked in earlier if asked is not None), None)

    def _in_turn(self, numbers: Sequence[int], budget: str) -> Iterator[tuple[int, str, Asked]]:
        place = list(self.budgets).index(budget)
        orders = {}
        for number in numbers:
            first = self._before(number, place)
            lines = self.known[number, budget].lines
            orders[number] = lines if first not in lines else (first, *(one for one in lines if one != first))
        for turn in range(max(map(len, orders.values()), default=0)):
            for number in numbers:
                progress = self.known[number, budget]
                if turn < len(orders[number]) and not progress.ended:
                    asked = orders[number][turn]
                    if asked is not None and asked not in progress.done:
                        yield number, budget, asked
