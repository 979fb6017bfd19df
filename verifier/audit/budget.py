"""How long a search goes on: cases, seconds, findings, and the share of the shapes that come first."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from verifier.audit.request import BUDGETS
from verifier.cases.plan import Plan

FINDINGS_PER_LINE = 3
STEERED_SECONDS = {"smoke": 0.0, "quick": 8.0, "standard": 60.0, "deep": math.inf}
"""Estimated seconds of the shapes that come first because of what they reach, by the name of a budget."""
STEERED_SHARE = 0.3
"""Share of a budget's cases, or of its time, that these have at most."""
LEAST_STEERED = 10
"""Cases from which on a search has such shapes, dear to find, and a call that says no number as eps."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long to search: a number of cases, until a moment of time.monotonic(), or so many findings.

    whole: the cases of the budget of which this is a check's share, if it is one.
    """

    cases: int = BUDGETS["quick"]
    until: float | None = None
    findings: int = FINDINGS_PER_LINE
    whole: int | None = None

    def taken_by(self, plan: Plan, named: int) -> Budget:
        """Return what a check takes of this budget, with room for so many shapes that the author named."""
        cases = plan.cases_of(self.cases, least=min(self.cases, named + 1))
        return replace(self, cases=cases, whole=self.whole or self.cases)

    def spent(self, done: int) -> bool:
        """Return whether to stop after so many cases."""
        return done >= self.cases or (self.until is not None and time.monotonic() >= self.until)

    @property
    def size(self) -> str:
        """The name of the smallest budget that has as many cases, or that of the largest."""
        return next((name for name, cases in BUDGETS.items() if (self.whole or self.cases) <= cases), "deep")

    @property
    def brief(self) -> bool:
        """Whether no more cases were asked for than a quick audit has."""
        return (self.whole or self.cases) <= BUDGETS["quick"]

    @property
    def words(self) -> str:
        """The budget in a sentence: as the command line names it, if it does."""
        named = self.until is None and BUDGETS[self.size] == (self.whole or self.cases)
        return f"--budget {self.size}" if named else "this budget"

    @property
    def steered(self) -> tuple[int, float]:
        """Cases and estimated seconds that are for the shapes that come first."""
        seconds = STEERED_SECONDS[self.size] * min(1.0, self.cases / BUDGETS[self.size])
        if self.until is not None:
            seconds = min(seconds, STEERED_SHARE * max(0.0, self.until - time.monotonic()))
        return (round(STEERED_SHARE * self.cases) if self.cases >= LEAST_STEERED else 0), seconds
