"""A list of choices in which every two levels of two factors meet, the most telling choices first.

Greedy pairwise covering, after Cohen, Dalal, Fredman and Patton, "The AETG system: an approach to testing
based on combinatorial design" (1997). Nothing is drawn at random: the list is the same everywhere.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Choice = Mapping[str, Any]

ATTEMPTS = 6
"""Ways in which a pair is completed before it counts as impossible; the last takes the first levels."""


@dataclass(frozen=True, kw_only=True)
class Factor:
    """What is varied: its levels, the most telling first, and how often each is taken with the others."""

    name: str
    levels: Sequence[object]
    weights: Sequence[float] = ()

    def due(self, level: int, count: float) -> float:
        """Return when a level is taken again: the least is next."""
        return (count + 1) / (self.weights[level] if self.weights else 1.0)


class Pairs:
    """The pairs of levels that have not met yet, and how often each level was taken."""

    def __init__(self, factors: Sequence[Factor]) -> None:
        """Start with all pairs; factors come in the order of their importance."""
        self.factors = list(factors)
        self.counts = [[0] * len(f.levels) for f in self.factors]
        self.refused = [[0] * len(f.levels) for f in self.factors]
        numbers = range(len(self.factors))
        # Each pair stands for both of its levels: left[f, i] are the (g, j) that it has not met.
        self.left: dict[tuple[int, int], dict[tuple[int, int], None]] = {
            (f, i): {
                (g, j): None for g in numbers if g != f for j in range(len(self.factors[g].levels))
            }
            for f in numbers
            for i in range(len(self.factors[f].levels))
        }  # fmt: skip

    def target(self) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Return the pair to be met next, of the first factor with pairs left and its level that is due."""
        for f, factor in enumerate(self.factors):
            open_levels = [i for i in range(len(factor.levels)) if self.left[f, i]]
            if open_levels:
                i = min(open_levels, key=lambda i: self.order(f, i))
                return (f, i), min(self.left[f, i], key=lambda level: (level[0], self.order(*level)))
        return None

    def order(self, f: int, i: int) -> tuple[float, int, int]:
        """Return what the least of is due: first in the order of levels, then in a permutation of its own."""
        count = self.counts[f][i]
        turned = zlib.crc32(f"{self.factors[f].name} {count} {i}".encode()) if count else 0
        # What is refused again and again (numbers outside the domain) waits as if it had been taken.
        return (self.factors[f].due(i, count + self.refused[f][i] / ATTEMPTS), turned, i)

    def gain(self, f: int, i: int, taken: Mapping[int, int]) -> int:
        """Return how many pairs a level would meet for the first time."""
        left = self.left[f, i]
        return sum((g, j) in left for g, j in taken.items())

    def meet(self, taken: Mapping[int, int]) -> None:
        """Cross out the pairs of a choice."""
        for f, i in taken.items():
            self.counts[f][i] += 1
            for level in taken.items():
                self.left[f, i].pop(level, None)

    def refuse(self, taken: Mapping[int, int]) -> None:
        """Count a choice that is not wanted."""
        for f, i in taken.items():
            self.refused[f][i] += 1

    def drop_pair(self, level: tuple[int, int], other: tuple[int, int]) -> None:
        """Cross out a pair that cannot be."""
        self.left[level].pop(other, None)
        self.left[other].pop(level, None)


def pairwise(
    factors: Sequence[Factor],
    *,
    possible: Callable[[Choice], bool] = lambda _: True,
    accept: Callable[[Choice], bool] = lambda _: True,
    patience: int = 400,
    early: Sequence[Choice] = (),
) -> Iterator[Choice]:
    """Yield choices of a level for each factor, until all pairs of levels have met that can.

    early: choices of some factors that come right after the first of all, completed, whatever they meet.
    possible: whether a choice of some factors can be completed, as far as that is quickly seen.
    accept: whether a whole choice is wanted; it is asked last for the choice that is yielded. After
    `patience` refusals in a row the list ends.
    """
    pairs = Pairs(factors)
    patient = _Patient(accept, patience)

    def wanted(start: Mapping[int, int]) -> Choice | None:
        for attempt in range(ATTEMPTS):
            taken = _completed(pairs, dict(start), attempt, possible)
            if taken is None:
                continue
            if patient.accepts(chosen := _named(pairs.factors, taken)):
                pairs.meet(taken)
                return chosen
            pairs.refuse(taken)
        return None

    waiting = [_numbered(factors, choice) for choice in early]
    while not patient.ended and (target := pairs.target()) is not None:
        found = wanted(dict(target))
        if found is None:
            pairs.drop_pair(*target)
            continue
        yield found
        yield from (choice for start in waiting if (choice := wanted(start)) is not None)
        waiting = []


class _Patient:
    """Asks whether a choice is wanted, and counts refusals in a row."""

    def __init__(self, accept: Callable[[Choice], bool], patience: int) -> None:
        self.accept, self.patience, self.refused = accept, patience, 0

    @property
    def ended(self) -> bool:
        return self.refused >= self.patience

    def accepts(self, choice: Choice) -> bool:
        found = self.accept(choice)
        self.refused = 0 if found else self.refused + 1
        return found


def _completed(
    pairs: Pairs, taken: dict[int, int], attempt: int, possible: Callable[[Choice], bool]
) -> dict[int, int] | None:
    """Return a level for each factor, given those that are taken, or None if one has none that can be."""
    if not possible(_named(pairs.factors, taken)):
        return None
    for f, factor in enumerate(pairs.factors):
        if f in taken:
            continue

        def rank(
            i: int, f: int = f, name: str = factor.name, weights: Sequence[float] = factor.weights
        ) -> tuple[float, ...]:
            if attempt == 0:
                gain, (due, *others) = pairs.gain(f, i, taken), pairs.order(f, i)
                # Where levels have weights, no level comes more often for the pairs that it lacks.
                return (due, -gain, *others) if weights else (-gain, due, *others)
            if attempt == ATTEMPTS - 1:
                return (i,)
            # A number of [0, 1) to the power of 1 / weight is the largest as often as the weight says.
            number = zlib.crc32(f"{name} {attempt} {pairs.counts[f]} {i}".encode()) / 2.0**32
            return (-(number ** (1.0 / (weights[i] if weights else 1.0))),)

        ranked = sorted(range(len(factor.levels)), key=rank)
        fitting = (i for i in ranked if possible(_named(pairs.factors, {**taken, f: i})))
        level = next(fitting, None)
        if level is None:
            return None
        taken[f] = level
    return taken


def _numbered(factors: Sequence[Factor], choice: Choice) -> Mapping[int, int]:
    """Return the numbers of a choice's factors and levels; factors that are not varied are left out."""
    return {f: [*one.levels].index(choice[one.name]) for f, one in enumerate(factors) if one.name in choice}


def _named(factors: Sequence[Factor], taken: Mapping[int, int]) -> Choice:
    return {factors[f].name: factors[f].levels[i] for f, i in taken.items()}
