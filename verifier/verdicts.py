"""Verdicts: what they mean, per case and summed up."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from verifier.case import Case
from verifier.printable import line as printable_line


class Verdict(StrEnum):
    """The closed list of verdicts.

    PASS: every element within its proved bound. FAIL: some element provably beyond it, or a demand broken.
    NO_THEOREM: no theorem covers the case. REFUSED: a clear error before the first launch.
    CRASH, TIMEOUT: any other error, or no answer. SKIPPED: not run, with the reason.
    UNDECIDED: nothing was decided. ERROR: the verifier itself failed, which says nothing about the subject.
    """

    PASS = "PASS"  # noqa: S105 (a verdict, no password)
    FAIL = "FAIL"
    NO_THEOREM = "NO_THEOREM"
    REFUSED = "REFUSED"
    CRASH = "CRASH"
    TIMEOUT = "TIMEOUT"
    SKIPPED = "SKIPPED"
    UNDECIDED = "UNDECIDED"
    ERROR = "ERROR"


BAD = frozenset({Verdict.FAIL, Verdict.CRASH, Verdict.TIMEOUT})


@dataclass(frozen=True, kw_only=True)
class Worst:
    """The element of one output that comes closest to, or goes furthest beyond, its bound.

    index: in the output's own shape. error, bound: absolute; ulp: error in units in the last place of
    the output's format at max(|expected|, smallest normal); row_ulp: in ulp at max(|expected|, the row's root
    mean square), so that 0.5 is correct rounding and nothing is unbounded near zero.
    utilisation: error / bound. canonical: error / bound of a float32 two-pass kernel with the same tree.
    """

    output: str
    index: tuple[int, ...]
    actual: float
    expected: float
    error: float
    bound: float
    ulp: float
    row_ulp: float
    utilisation: float
    canonical: float = math.nan


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One judgement of one case: of one output, or of a demand that concerns the whole case.

    output: what it is about. message: for a person who has never opened this project.
    mean_ulp and signed_ulp (mean of the signed errors) are over all elements that a theorem covers, or over
    all if nothing is claimed, in the unit of `Worst.row_ulp`.
    wrong: how many elements of how many are beyond their bound.
    """

    verdict: Verdict
    output: str = ""
    message: str = ""
    worst: Worst | None = None
    decided: int = 0
    wrong: int = 0
    uncovered: int = 0
    mean_ulp: float = 0.0
    signed_ulp: float = 0.0
    rungs: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Keep the message one line that can be shown: a part of it may be the subject's own words."""
        object.__setattr__(self, "message", printable_line(self.message))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A failed check with its shrunk case, ready to be shown and replayed.

    file: where the case was saved; unwritten: why it could not be.
    """

    subject: str
    path: str
    check: str
    op: str
    dtype: str
    backend: str
    verdict: Verdict
    outcome: Outcome
    case: Case
    declaration: str
    expected: bool = False
    reason: str = ""
    detail: str = ""
    file: str = ""
    unwritten: str = ""


@dataclass(kw_only=True)
class Line:
    """What one check found on one subject with one dtype on one backend.

    empty: cases among those that passed in which there was nothing to compute.
    undecided: why cases are UNDECIDED, with their numbers. errors: texts of the verifier's own failures, with
    the traceback of the first of each. counts are of cases inside the declared domain, beyond of those
    outside. untried: what the check must vary and has not. listed: recipes of the fixed list that are done.
    """

    subject: str
    check: str
    dtype: str
    backend: str
    variance: str
    counts: Counter[Verdict] = field(default_factory=Counter)
    outputs: dict[str, Worst] = field(default_factory=dict)
    worst_ulp: float = 0.0
    worst_row_ulp: float = 0.0
    kappa: tuple[float, float] = (math.inf, 0.0)
    no_theorem_from: Mapping[str, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    skipped: str = ""
    notes: list[str] = field(default_factory=list)
    measured: Counter[str] = field(default_factory=Counter)
    undecided: Counter[str] = field(default_factory=Counter)
    errors: dict[str, str] = field(default_factory=dict)
    doubtful: int = 0
    seconds: float = 0.0
    beyond: Counter[Verdict] = field(default_factory=Counter)
    untried: list[str] = field(default_factory=list)
    listed: int = 0
    left_out: int = 0
    empty: int = 0

    @property
    def verdict(self) -> Verdict:
        """Sum up: the worst that happened; PASS needs at least one decided case and none in doubt.

        Cases with nothing to compute do not make up for undecided ones.

        What is found stands, but where the verifier itself failed, nothing else is said.
        """
        if self.skipped:
            return Verdict.SKIPPED
        if self.counts[Verdict.ERROR] and not self.unexpected:
            return Verdict.ERROR
        if self.findings:
            worst = {f.verdict for f in self.findings if not f.expected} or {f.verdict for f in self.findings}
            order = (Verdict.CRASH, Verdict.TIMEOUT, Verdict.FAIL, Verdict.REFUSED, Verdict.NO_THEOREM)
            return next(v for v in order if v in worst)
        told = self.counts[Verdict.PASS] - (self.empty if self.counts[Verdict.UNDECIDED] else 0)
        passed = told and not self.doubtful
        return Verdict.PASS if passed else Verdict.UNDECIDED

    @property
    def outside(self) -> int:
        """How many cases lay outside the declared domain."""
        return self.beyond.total()

    @property
    def begun(self) -> bool:
        """Whether anything was run, or there is a reason why nothing is."""
        seen = self.counts.total() + self.outside + self.measured.total() + len(self.findings) + self.left_out
        return bool(self.skipped) or self.listed > 0 or seen > 0

    @property
    def unexpected(self) -> bool:
        """Whether anything was found that is not a declared known defect."""
        return any(not finding.expected for finding in self.findings)

    @property
    def worst(self) -> Worst | None:
        """The worst element over all outputs, by utilisation."""
        return max(self.outputs.values(), key=lambda w: w.utilisation, default=None)

    def add(
        self, case: Case, outcomes: Iterable[Outcome], *, outside: bool, detail: str = ""
    ) -> Verdict | None:
        """Count a case with all that was judged of it; detail: a traceback of what stopped it.

        Outside the domain a case is counted and has no other say. Returns the case's verdict, if it has one.
        """
        outcomes = list(outcomes)
        if outside:
            return self._add_outside(outcomes, detail)
        # What no guarantee demands is measured: it is reported and decides nothing.
        measured = {str(o.facts["measured"]) for o in outcomes if "measured" in o.facts}
        self.measured.update(measured)
        # A case in doubt differs from what is right, perhaps with reason: no other case makes up for it.
        self.doubtful += any(o.facts.get("doubtful") for o in outcomes)
        outcomes = [o for o in outcomes if "measured" not in o.facts]
        if not outcomes:
            return None
        verdict = summed(o.verdict for o in outcomes)
        self.counts[verdict] += 1
        self.empty += verdict is Verdict.PASS and not all(t.numel() for t in case.given.values())
        self._add_reasons(verdict, outcomes, detail)
        decided = any(o.decided for o in outcomes)
        if decided and math.isfinite(case.kappa):
            self.kappa = (min(self.kappa[0], case.kappa), max(self.kappa[1], case.kappa))
        for outcome in outcomes:
            # Elements without a theorem have no say in the worst error, unless nothing is claimed at all.
            if outcome.decided or self.variance == "none":
                self._add_worst(outcome.worst)
            if outcome.uncovered and not outcome.decided:
                self._add_no_theorem(case)
        return verdict

    def _add_outside(self, outcomes: list[Outcome], detail: str) -> Verdict:
        verdict = summed(o.verdict for o in outcomes)
        self.beyond[verdict] += 1
        if verdict is Verdict.ERROR:  # ours wherever it happens
            self.counts[verdict] += 1
            self._add_reasons(verdict, outcomes, detail)
        return verdict

    def _add_reasons(self, verdict: Verdict, outcomes: Iterable[Outcome], detail: str) -> None:
        """Keep why a case was not decided, once for all messages that differ in numbers alone."""
        texts = dict.fromkeys(o.message for o in outcomes if o.verdict is verdict and o.message)
        if verdict is Verdict.UNDECIDED:
            known = {numberless(text): text for text in self.undecided}
            self.undecided.update({known.get(numberless(text), text) for text in texts})
        if verdict is Verdict.ERROR:
            for text in texts:
                self.errors.setdefault(text, detail)

    def _add_worst(self, worst: Worst | None) -> None:
        if worst is None:
            return
        self.worst_ulp = max(self.worst_ulp, worst.ulp)
        self.worst_row_ulp = max(self.worst_row_ulp, worst.row_ulp)
        seen = self.outputs.get(worst.output)
        if seen is None or worst.utilisation > seen.utilisation:
            self.outputs[worst.output] = worst

    def _add_no_theorem(self, case: Case) -> None:
        known = dict(self.no_theorem_from)
        known["kappa"] = min(known.get("kappa", math.inf), case.kappa)
        known["magnitude"] = min(known.get("magnitude", math.inf), case.largest)
        self.no_theorem_from = known


def numberless(message: str) -> str:
    """Return a message without its numbers (names such as float32 are none): what alike ones share."""
    return re.sub(r"(?<![\w.])[-+]?\d[\d.]*(e[-+]?\d+)?\b|\bnan\b|\binf\b", "#", message)


def failure_key(outcome: Outcome) -> str:
    """Return what makes two failures alike: verdict, output, and the first words where no number is wrong."""
    words = "".join(c if c.isalpha() else " " for c in outcome.message.split(":")[0]).split()
    return f"{outcome.verdict}|{outcome.output}|{'' if outcome.worst else ' '.join(words)}"


def summed(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of a case from those of its parts: the worst, and PASS before NO_THEOREM.

    What was looked at and stays open outweighs what passed.
    """
    found = set(verdicts)
    order = (
        Verdict.CRASH,
        Verdict.TIMEOUT,
        Verdict.FAIL,
        Verdict.REFUSED,
        Verdict.ERROR,
        Verdict.UNDECIDED,
        Verdict.PASS,
        Verdict.NO_THEOREM,
        Verdict.SKIPPED,
    )
    return next((v for v in order if v in found), Verdict.UNDECIDED)
