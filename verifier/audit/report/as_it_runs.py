"""Says what an audit finds while it runs: findings at once, a subject's line with its last check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from verifier.audit.news import FirstCases
from verifier.audit.reach_of_subjects import SubjectReach, reach_of_lines
from verifier.audit.report.columns import STYLES, runs_nowhere, widths
from verifier.audit.report.finding_text import elsewhere, failure_text, of_one_cause
from verifier.audit.report.subject_lines import (
    WIDEST_VERDICT,
    SubjectLine,
    first_cases_text,
    heading,
    subject_text,
)
from verifier.audit.report.terminal import PlainTable, nowhere_text
from verifier.audit.rules import failure_key, unexpected
from verifier.audit.run_audit import Job
from verifier.records.verdict import BAD, Finding, Line, Verdict


@dataclass(kw_only=True)
class AsItRuns:
    """What is said of an audit before it has ended, as lines of text with the style they have on a terminal.

    jobs: all that are to run. variances: what their subjects claim, for the width of a column, and defects:
    whether one declares known defects, with which verdicts are marked. verbosity: -1 findings alone, 0 a line
    for each subject and dtype, from 1 on one for each check, unless `tables` are shown when all has ended.
    room: characters of a terminal's line. traceback: see `failure_text`.
    """

    jobs: Sequence[Job]
    say: Callable[[str, str], None]
    verbosity: int = 0
    variances: Iterable[str] = ()
    defects: bool = False
    tables: bool = False
    room: int | None = None
    traceback: bool = False
    _lines: list[Line] = field(default_factory=list)
    _early: list[Finding] = field(default_factory=list)
    _told: set[Hashable] = field(default_factory=set)
    _nowhere: set[str] = field(default_factory=set)
    _headed: bool = False
    _last: str = ""

    def __post_init__(self) -> None:
        """Count the checks of each subject and dtype."""
        self._wide = widths((job.subject for job in self.jobs), self.variances)
        if self.defects:
            self._wide["verdict"] = WIDEST_VERDICT
        self._checks = Counter((job.subject, job.dtype) for job in self.jobs)
        self._table = PlainTable(widths=self._wide, say=self._row)
        self._open: dict[tuple[str, str], list[Line]] = {}

    def add(self, line: Line) -> None:
        """Take the line of a check that has ended."""
        self._lines.append(line)
        if self.verbosity > 0 and not self.tables:
            self._table.add(line)
        self._tell_findings()
        if self.verbosity > 0:
            return
        own = self._open.setdefault((line.subject, line.dtype), [])
        own.append(line)
        if len(own) == self._checks[line.subject, line.dtype]:
            self._close(line.subject, line.dtype)

    def tell_first_cases(self, subject: str, dtype: str, judged: FirstCases) -> None:
        """Say what came of the first cases: if all is well, only until lines begin."""
        bad = next((v for _, v in judged if v in BAD | {Verdict.REFUSED}), None)
        lines = self._headed or (self.verbosity > 0 and self._lines)
        if self.verbosity < 0 or (bad is None and lines):
            return
        style = "" if bad is None else STYLES.get(bad, "red")
        self._row(first_cases_text(subject, dtype, judged, self._wide), style)

    def tell(self, finding: Finding) -> None:
        """Take a finding whose line has not ended."""
        self._early.append(finding)
        self._tell_findings()

    def fail(self, job: Job) -> None:
        """Take a check in whose place the verifier itself failed."""
        failed = Counter({Verdict.ERROR: 1})
        self.add(
            Line(
                subject=job.subject,
                check=job.check,
                dtype=job.dtype,
                backend=job.backend or "-",
                variance="",
                counts=failed,
            )
        )

    def end(self) -> None:
        """Say what is left: subjects of which not all checks have ended, and where else findings were met."""
        for subject, dtype in list(self._open):
            self._close(subject, dtype)
        self._tell_alike()

    def _close(self, subject: str, dtype: str) -> None:
        lines = self._open.pop((subject, dtype))
        if self.verbosity < 0:
            return
        if all(map(runs_nowhere, lines)):
            text = nowhere_text(lines[0])
            if text not in self._nowhere:
                self._row(text)
            self._nowhere.add(text)
            return
        if not self._headed:
            self._headed = True
            self._row(heading(self._wide), "bold")
        one = SubjectLine(lines=lines, checks=self._checks[subject, dtype], reach=self._reach(subject))
        self._row(subject_text(one, self._wide, self.room), one.style)

    def _reach(self, subject: str) -> SubjectReach | None:
        """Return what of a subject has run so far; later dtypes may run more."""
        path = next(job.path for job in self.jobs if job.subject == subject)
        own = [line for line in self._lines if line.subject == subject]
        return next(iter(reach_of_lines(own, [(path, subject)])), None)

    def _tell_findings(self) -> None:
        """Say each finding whose like was not said before."""
        for group in self._groups():
            if not any(_mark(finding) in self._told for finding in group):
                self._told.add(_mark(group[0]))
                self._apart("finding", failure_text(group[0], traceback=self.traceback))

    def _tell_alike(self) -> None:
        """Say of each finding that was told where else it was met since."""
        for group in self._groups():
            first = next((finding for finding in group if _mark(finding) in self._told), group[0])
            if alike := [finding for finding in group if finding is not first]:
                self._apart("alike", "\n".join(_alike(first, alike)))

    def _row(self, text: str, style: str = "") -> None:
        if self._last not in {"", "row"}:
            self.say("", "")
        self.say(text, style)
        self._last = "row"

    def _apart(self, kind: str, text: str) -> None:
        """Say what has an empty line before it, unless nothing was said before."""
        if self._last:
            self.say("", "")
        self.say(text, "")
        self._last = kind

    def _groups(self) -> list[list[Finding]]:
        ended = [finding for line in self._lines for finding in line.findings]
        every = {_mark(finding): finding for finding in (*self._early, *ended)}
        return of_one_cause(unexpected(every.values()))


def _mark(finding: Finding) -> Hashable:
    """Return what tells a finding from others: two of one line are never alike in this."""
    where = (finding.path, finding.subject, finding.check, finding.dtype, finding.backend)
    return (*where, failure_key(finding.outcome), finding.expected, finding.outcome.message)


def _alike(first: Finding, alike: Sequence[Finding]) -> list[str]:
    head = f"{first.verdict}  {first.subject}  {first.check}  {first.dtype}: {first.outcome.message}"
    return [head, *elsewhere(first, alike)]
