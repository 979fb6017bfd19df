"""One line for all checks of a subject with one dtype: what they come to, and of what they do not speak."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from verifier.audit.news import FirstCases
from verifier.audit.reach_of_subjects import SubjectReach
from verifier.audit.report.columns import (
    COLUMNS,
    KNOWN,
    Column,
    cells,
    cut,
    kappa_in_words,
    legend,
    three_digits,
    verdict_style,
    verdict_words,
)
from verifier.audit.report.reach_text import of_what_ran
from verifier.audit.rules import known_alone, line_verdict, worst_line
from verifier.records.verdict import Line, Verdict

_NAMED = 3
"""Checks, or combinations that were not tried, that a line names at most."""
WIDEST_VERDICT = len(f"{Verdict.UNDECIDED}{KNOWN}")
"""Characters that the marked verdict of a subject with known defects may have."""
RAN = "ran"
"""Of a case that ended without an error and of which nothing is left to judge: it has no elements."""
CERTIFIED_LEGEND = (
    "CERTIFIED (with --certify) stands beside PASS: at the shapes named, the compiled code is the declared "
    "computation for all inputs; not certified: it was not shown, which says nothing against the kernel"
)
_INDENT = 14
"""Characters before what does not fit beside the rest."""


@dataclass(frozen=True, kw_only=True)
class SubjectLine:
    """The lines of one subject with one dtype; checks: how many were to run; reach: of what ended so far."""

    lines: Sequence[Line]
    checks: int
    reach: SubjectReach | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict of the line that looks worst."""
        return line_verdict(worst_line(self.lines))

    @property
    def words(self) -> str:
        """The verdict, marked where declared known defects alone have caused it."""
        return verdict_words(worst_line(self.lines))

    @property
    def style(self) -> str:
        """How the verdict looks on a terminal."""
        return verdict_style(worst_line(self.lines))

    @property
    def run(self) -> list[Line]:
        """The lines on which something was run."""
        return [line for line in self.lines if line_verdict(line) is not Verdict.SKIPPED]


def _utilisation(one: SubjectLine) -> str:
    return three_digits(max((used for used, _ in _used(one)), default=math.nan))


def _used(one: SubjectLine) -> Iterator[tuple[float, str]]:
    """Yield error / bound of each output of each check, with their names."""
    for line in one.lines:
        for name, worst in line.outputs.items():
            if not math.isnan(worst.utilisation):
                yield worst.utilisation, f"{line.check} {name}"


def _ulp(one: SubjectLine) -> str:
    return three_digits(max((line.nonzero_row_ulp for line in one.lines if line.outputs), default=math.nan))


def _kappa(one: SubjectLine) -> str:
    low = min((line.kappa[0] for line in one.lines), default=math.inf)
    return kappa_in_words(low, max((line.kappa[1] for line in one.lines), default=0.0))


def _remarks(one: SubjectLine) -> str:
    return "; ".join(remarks(one))


def remarks(one: SubjectLine) -> Iterator[str]:
    """Yield where the error is worst, then what was not reached."""
    if used := list(_used(one)):
        yield max(used, key=lambda pair: pair[0])[1]
    if len(one.lines) < one.checks:
        yield f"{len(one.lines)} of {one.checks} checks ended"
    if one.reach is not None:
        yield from _not_run(one.reach, passed=one.verdict is Verdict.PASS)
    if confirmed := [line.check for line in one.lines if line.findings and known_alone(line)]:
        yield f"known defects in: {_some(confirmed)}"
    open_still = [line for line in one.lines if line_verdict(line) is Verdict.UNDECIDED]
    if undecided := [line for line in open_still if not known_alone(line)]:
        yield f"undecided: {_some([line.check for line in undecided])}{_why(undecided)}"
    if excluded := [line.check for line in open_still if known_alone(line)]:
        yield f"known defects leave no case: {_some(excluded)}"
    gaps: dict[str, dict[str, None]] = {"not tried": {}, "refused": {}}
    for line in one.lines:
        for why, names in (line.gaps if line_verdict(line) is Verdict.PASS else {}).items():
            gaps[why] |= dict.fromkeys(names)
    yield from (f"{why}: {_some([*names])}" for why, names in gaps.items() if names)
    if not one.run:
        yield f"not run: {cut(next(line.skipped for line in one.lines))}"


def _why(undecided: Sequence[Line]) -> str:
    """Return in brackets the most frequent reason, or that nothing is claimed, if either is known."""
    reasons = sum((line.undecided for line in undecided), Counter[str]())
    if reasons:
        return f" ({cut(reasons.most_common(1)[0][0])})"
    unclaimed = any(line.variance == "none" and line.counts[Verdict.NO_THEOREM] for line in undecided)
    return " (nothing is claimed: `norm-verifier describe` proposes what to claim)" if unclaimed else ""


def _not_run(reach: SubjectReach, *, passed: bool) -> Iterator[str]:
    if not reach.known:
        yield "functions and loops that ran are not known"
    elif not reach.whole:
        yield f"{'PASS ' if passed else ''}of what ran: {of_what_ran(reach)}"
    ran, count = reach.lines
    if "lines" in reach.found.recorded and ran < count:
        yield f"{ran} of {count} wrapper lines ran"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


SUBJECT_COLUMNS: tuple[Column[SubjectLine], ...] = (
    Column(
        name="verdict",
        meaning="of all checks together: that of the worst; (known): due to declared known defects alone",
        text=lambda one: one.words,
        width=12,
    ),
    Column(name="subject", meaning="", text=lambda one: one.lines[0].subject, width=20),
    Column(name="dtype", meaning="", text=lambda one: one.lines[0].dtype, width=8),
    Column(
        name="error/bound",
        meaning="largest error in proved bounds; above 1 proves that kernel or declaration is wrong",
        text=_utilisation,
        width=11,
        right=True,
    ),
    Column(
        name="row ulp",
        meaning="largest error where the bound tells exact values from 0, in units in the last place at the "
        "row's root mean square; 0.5 is correct rounding",
        text=_ulp,
        width=7,
        right=True,
    ),
    Column(
        name="kappa",
        meaning="least..largest |mean| / standard deviation of rows that were decided",
        text=_kappa,
        width=11,
    ),
    Column(
        name="checks",
        meaning="how many had something to run, of how many; -v shows each, and what kept the others",
        text=lambda one: f"{len(one.run)}/{one.checks}",
        width=6,
    ),
    Column(
        name="worst in; not reached",
        meaning="check and output of error/bound; functions, loops and lines that did not run",
        text=_remarks,
        width=0,
    ),
)


def heading(wide: Mapping[str, int]) -> str:
    """Return the names of the columns; wide: widths of those that depend on what is audited."""
    return "  ".join(cells(SUBJECT_COLUMNS, [c.name for c in SUBJECT_COLUMNS], wide)).rstrip()


def subject_text(one: SubjectLine, wide: Mapping[str, int], room: int | None = None) -> str:
    """Return a subject's line; where there is room for fewer characters, its remarks stand below."""
    *row, told = cells(SUBJECT_COLUMNS, [c.text(one) for c in SUBJECT_COLUMNS], wide)
    whole = "  ".join((*row, told)).rstrip()
    if room is None or len(whole) <= room or not told.strip():
        return whole
    return f"{'  '.join(row).rstrip()}\n{' ' * _INDENT}{told}"


def first_cases_text(subject: str, dtype: str, judged: FirstCases, wide: Mapping[str, int]) -> str:
    """Return the line of the cases that were judged first: each verdict with the kinds that have it."""
    kinds: dict[str, list[str]] = {}
    for words, verdict in judged:
        kinds.setdefault(str(verdict or RAN), []).append(words)
    told = "; ".join(f"{verdict}: {', '.join(words)}" for verdict, words in kinds.items())
    return "  ".join((*cells(SUBJECT_COLUMNS[:3], ("first cases", subject, dtype), wide), told))


def legends() -> Iterator[str]:
    """Yield what the columns mean: of the lines of subjects, then of the table by check."""
    yield "Without -v, a line for each subject and dtype:"
    yield from legend(SUBJECT_COLUMNS)
    yield ""
    yield "With -v, a line for each check:"
    yield from legend(COLUMNS)
    yield ""
    yield CERTIFIED_LEGEND
