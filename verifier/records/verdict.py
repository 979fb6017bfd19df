"""Verdicts, and the records that hold them: of one judgement, a finding, a line of an audit."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from verifier.records.case import Case
from verifier.records.printable import line as printable_line
from verifier.records.reach import NOTHING, Reach


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
    nonzero_row_ulp: row_ulp over elements of finite rows whose exact value the bound tells from 0.
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
    nonzero_row_ulp: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was seen where nothing is demanded: it is reported and decides nothing.

    seen: in words. undemanded: why nothing is demanded, where there is something to say of that; what has
    the same reason is reported in one sentence.
    """

    seen: str
    undemanded: str = ""

    @property
    def text(self) -> str:
        """The whole sentence."""
        return f"{self.undemanded}; measured: {self.seen}" if self.undemanded else self.seen


@dataclass(frozen=True, kw_only=True)
class FailureKey:
    """What makes two failures alike: verdict, output, and the first words where no number is wrong."""

    verdict: str
    output: str = ""
    words: str = ""

    def __str__(self) -> str:
        """Return the key as it stands in the file of a case."""
        return f"{self.verdict}|{self.output}|{self.words}"

    @classmethod
    def read(cls, text: str) -> FailureKey:
        """Return the key that stands in the file of a case; parts that are missing are empty."""
        verdict, output, words = [*text.split("|", 2), "", ""][:3]
        return cls(verdict=verdict, output=output, words=words)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One judgement of one case: of one output, or of a demand that concerns the whole case.

    output: what it is about. message: for a person who has never opened this project.
    mean_ulp and signed_ulp (mean of the signed errors) are over all elements that a theorem covers, or over
    all if nothing is claimed, in the unit of `Worst.row_ulp`.
    wrong: how many elements of how many are beyond their bound. reasons: why elements have no theorem.
    measured: what is reported and decides nothing; the outcome has no other say then. doubtful: the case
    differs from what is right, perhaps with reason, so that no other case makes up for it.
    kept: it is about what later calls meet too. tried: what of `must_be_tried` the case was.
    meaning: what a failure proves, where that is not what a broken bound proves. formula: what a failure says
    of the formula, unless another change of the case explains it.
    died: the subject's process did. machine_finding: kind of what the machine found.
    evidence: what else the check saw, in a record of its own; it decides nothing.
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
    reasons: tuple[str, ...] = ()
    measured: Measured | None = None
    doubtful: bool = False
    kept: bool = False
    tried: tuple[str, ...] = ()
    meaning: str = ""
    formula: str = ""
    died: bool = False
    machine_finding: str = ""
    evidence: object = None

    def __post_init__(self) -> None:
        """Keep the message one line that can be shown: a part of it may be the subject's own words."""
        object.__setattr__(self, "message", printable_line(self.message))


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A failing case with one thing changed, and what became of it.

    change: such as "weight is contiguous". verdict: PASS where the result in question passed. tensor: which
    was changed, if one was; strides: those that it had, in elements, where its layout was changed.
    shows: what the difference shows, if anything.
    """

    change: str
    verdict: Verdict
    tensor: str = ""
    strides: tuple[int, ...] = ()
    shows: str = ""

    @property
    def passes(self) -> bool:
        """Whether the change makes the case pass."""
        return self.verdict is Verdict.PASS


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A failed check with its shrunk case, ready to be shown and replayed.

    file: where the case was saved; unwritten: why it could not be.
    variants: what of the case was changed in search of the cause.
    multiprocessors: of the device that was played; 0: as the machine usually has.
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
    variants: tuple[Variant, ...] = ()
    multiprocessors: int = 0

    @property
    def cause(self) -> str:
        """What makes the case pass and what else its variants show, in words; empty where nothing does."""
        passing = [v for v in self.variants if v.passes]
        changes = [f"when {v.change}" + (f": {v.shows}" if v.shows else "") for v in passing]
        told = [f"passes {'; '.join(changes)}"] if changes else []
        return "; ".join(told + [v.shows for v in self.variants if v.shows and not v.passes])


@dataclass(frozen=True, kw_only=True)
class ReadTree:
    """How deep the code makes the sums of one reduction, and how deep its declaration lets them be.

    role: a field of `Trees`. rows, columns: of the case at which the code was read. terms: of the sum whose
    two depths, in additions that a term meets, differ most.
    """

    role: str
    rows: int
    columns: int
    terms: int
    compiled: int
    declared: int


@dataclass(kw_only=True)
class Line:
    """What one check found on one subject with one dtype on one backend.

    empty: cases among those that passed in which there was nothing to compute.
    undecided: why cases are UNDECIDED, with their numbers. errors: texts of the verifier's own failures, with
    the traceback of the first of each. counts are of cases inside the declared domain, beyond of those
    outside. untried: what the check must vary and has not; refused: words of it whose cases were refused.
    listed: recipes of the fixed list that are done.
    left_out: cases that known defects took from the search; excluded: their reasons, if no case is left.
    reach: what of the subject's sources ran that no line before it of the same process had seen.
    path: of the subject's file. trees: declared ones, and how deep the compiled code makes their sums.
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
    nonzero_row_ulp: float = 0.0
    kappa: tuple[float, float] = (math.inf, 0.0)
    no_theorem_from: Mapping[str, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    skipped: str = ""
    notes: list[str] = field(default_factory=list)
    excluded: list[str] = field(default_factory=list)
    measured: Counter[Measured] = field(default_factory=Counter)
    undecided: Counter[str] = field(default_factory=Counter)
    errors: dict[str, str] = field(default_factory=dict)
    doubtful: int = 0
    seconds: float = 0.0
    beyond: Counter[Verdict] = field(default_factory=Counter)
    untried: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    listed: int = 0
    left_out: int = 0
    empty: int = 0
    reach: Reach = NOTHING
    path: str = ""
    trees: tuple[ReadTree, ...] = ()

    @property
    def outside(self) -> int:
        """How many cases lay outside the declared domain."""
        return self.beyond.total()

    @property
    def gaps(self) -> dict[str, list[str]]:
        """What the check must vary and has not, by why: "not tried", or "refused" by the subject."""
        refused = [name for name in self.untried if name in self.refused]
        told = {"not tried": [name for name in self.untried if name not in refused], "refused": refused}
        return {why: names for why, names in told.items() if names}

    @property
    def worst(self) -> Worst | None:
        """The worst element over all outputs, by utilisation."""
        return max(self.outputs.values(), key=lambda w: w.utilisation, default=None)


def numberless(message: str) -> str:
    """Return a message without its numbers (names such as float32 are none): what alike ones share."""
    return re.sub(r"(?<![\w.])[-+]?\d[\d.]*(e[-+]?\d+)?\b|\bnan\b|\binf\b", "#", message)
