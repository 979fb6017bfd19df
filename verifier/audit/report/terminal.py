"""The report of an audit for a person: a table and the findings on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from verifier.audit.reach_of_subjects import SubjectReach
from verifier.audit.record import Report
from verifier.audit.report.certified_text import certified_summary, contradictions
from verifier.audit.report.columns import (
    COLUMNS,
    KNOWN,
    legend,
    notes_outside_table,
    row,
    runs_nowhere,
    verdict_style,
    verdict_words,
    widths,
)
from verifier.audit.report.finding_text import also_in, failure_text, of_one_cause
from verifier.audit.report.reach_text import reach_lines, unmet, what_ran
from verifier.audit.rules import no_case_left, unexpected
from verifier.records.printable import block
from verifier.records.verdict import Finding, Line, Verdict
from verifier.subjects.libraries import LibraryFound

OF_A_FEW_CASES = "A few cases of each check were judged: `--budget quick` and `--budget standard` ask more"
_ORDER = (
    Verdict.PASS,
    Verdict.FAIL,
    Verdict.CRASH,
    Verdict.TIMEOUT,
    Verdict.REFUSED,
    Verdict.NO_THEOREM,
    Verdict.UNDECIDED,
    Verdict.ERROR,
    Verdict.SKIPPED,
)


@dataclass(kw_only=True)
class PlainTable:
    """Says lines of the table one by one, for logs; the heading comes before the first.

    widths: of the columns that depend on what is audited, see `columns.widths`.
    """

    widths: dict[str, int]
    say: Callable[[str], None]
    _headed: bool = False
    _nowhere: set[str] = field(default_factory=set)

    def add(self, line: Line) -> None:
        """Say one line; what keeps a whole subject from running is said once."""
        if runs_nowhere(line):
            text = nowhere_text(line)
            if text not in self._nowhere:
                self.say(text)
            self._nowhere.add(text)
            return
        if not self._headed:
            self._headed = True
            self.say(row([column.name for column in COLUMNS], self.widths))
        self.say(row([column.text(line) for column in COLUMNS], self.widths))


def show(
    report: Report, console: Console, *, verbosity: int = 2, lines: bool = True, findings: bool = True
) -> None:
    """Print what is left to be told of a report that has ended.

    verbosity: -1 failures of the verifier itself alone, 0 a summary as well, 1 the table by check, why lines
    were not run, known defects and what ran, with a legend, 2 all notes. Without lines or findings that were
    told already.
    """
    if lines and verbosity > 0:
        _lines(report.lines, console)
    if findings:
        show_findings(report, console)
    if verbosity > 0:
        _known_defects(report, console)
        _remarks(report.lines, console, notes=verbosity > 1)
    _reach(report.reach if verbosity > 0 else report.short_of_reach, report, console)
    for text in libraries_text(report.libraries, names=verbosity > 0) if verbosity >= 0 else ():
        console.print(_text(text), soft_wrap=True)
    for error in (*own_failures(report.lines), *report.errors, *contradictions(report.certificates)):
        console.print(_text(error, style="red"), soft_wrap=True)
    if verbosity > 0 and not all(map(runs_nowhere, report.lines)):
        console.print(_text("\n".join(("\nColumns:", *legend(COLUMNS))), style="dim"), soft_wrap=True)
    if verbosity >= 0:
        console.print(_text("\n" + summary(report)), soft_wrap=True)


def _reach(shown: Sequence[SubjectReach], report: Report, console: Console) -> None:
    """Say what of subjects ran; then who falls short of what is required."""
    for number, one in enumerate(shown):
        heading = "\n" if number == 0 else ""
        console.print(_text(heading + "\n".join(reach_lines(one, len(shown)))), soft_wrap=True)
    for one in report.short_of_reach:
        console.print(_text(unmet(one, report.required_reach or 0.0).text, style="red"), soft_wrap=True)


def libraries_text(libraries: Iterable[LibraryFound], *, names: bool) -> Iterator[str]:
    """Yield of each library its version and what of it no declaration reaches; names: all of them."""
    for one in libraries:
        count = sum(len(found) for found in one.unreached.values())
        named = [f"    {module}: {', '.join(found)}" for module, found in one.unreached.items()]
        heading = f"\n{one.distribution} {one.version}: no declaration reaches {count} of its norms"
        yield "\n".join((heading, *named)) if names else f"{heading}" + (" (-v names them)" if count else "")


def _text(text: str, style: str = "") -> Text:
    """Return a text for rich in which nothing but the style given steers the terminal."""
    return Text(block(text), style=style)


def own_failures(lines: Iterable[Line]) -> list[str]:
    """Return each failure of the verifier itself with the lines that it meets, and one traceback."""
    met: dict[str, list[Line]] = {}
    for line in lines:
        for text in line.errors:
            met.setdefault(text, []).append(line)
    texts = []
    for text, group in met.items():
        places = "\n    ".join(_places(group))
        detail = group[0].errors[text].rstrip()
        texts.append(
            f"\nthe verifier itself failed: {text}\n    {places}" + (f"\n{detail}" if detail else "")
        )
    return texts


def _lines(lines: Sequence[Line], console: Console) -> None:
    if not console.is_terminal:
        wide = widths([line.subject for line in lines], [line.variance for line in lines])
        table = PlainTable(widths=wide, say=lambda text: console.print(_text(text), soft_wrap=True))
        for line in lines:
            table.add(line)
        return
    for text in dict.fromkeys(nowhere_text(line) for line in lines if runs_nowhere(line)):
        console.print(_text(text))
    if placed := [line for line in lines if not runs_nowhere(line)]:
        _tables(placed, console)


def nowhere_text(line: Line) -> str:
    """Return why a subject runs nowhere here."""
    return f"{line.subject}: not run: {line.skipped}"


def show_findings(report: Report, console: Console) -> None:
    """Print every unexpected finding, those of one cause together."""
    for first, *alike in of_one_cause(unexpected(report.findings)):
        console.print()
        console.print(_text(failure_text(first, alike)), soft_wrap=True)


def _known_defects(report: Report, console: Console) -> None:
    """Print the declared known defects that were confirmed, each with where."""
    known = [f for f in report.findings if f.expected]
    if known:
        console.print("\nDeclared known defects, confirmed by their witnesses:")
    grouped: dict[tuple[str, str], list[Finding]] = {}
    for finding in known:
        grouped.setdefault((finding.subject, finding.reason), []).append(finding)
    for (subject, reason), group in grouped.items():
        console.print(_text(f"  {subject}: {reason}\n    {also_in(group)}"), soft_wrap=True)


_OF_SUBJECTS = ("subject", "variance")
"""Columns that are the same on all lines of a subject: a terminal has no room to repeat them."""


_LESS_WANTED = ("worst ulp", "bound", "error/two-pass")
"""Columns for which a terminal of fewer than `_ROOM` characters has no room; --json has them."""
_ROOM = 120


def _tables(lines: Sequence[Line], console: Console) -> None:
    """Print a table for each subject, under a heading of what is the same on all of its lines."""
    by_subject: dict[tuple[str, ...], list[Line]] = {}
    for line in lines:
        heads = tuple(f"{c.name} {c.text(line)}" for c in COLUMNS if c.name in _OF_SUBJECTS)
        by_subject.setdefault(heads, []).append(line)
    for heads, own in by_subject.items():
        console.print(_text("\n" + "  ".join(heads), style="bold"), soft_wrap=True)
        console.print(_table(own, () if console.width >= _ROOM else _LESS_WANTED))


def _table(lines: Iterable[Line], left_out: Collection[str]) -> Table:
    shown = [column for column in COLUMNS if column.name not in {*_OF_SUBJECTS, *left_out}]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in shown:
        whole = column.name != "cases"  # numbers and names are not folded
        justify: Literal["right", "left"] = "right" if column.right else "left"
        table.add_column(column.name, overflow="fold", justify=justify, no_wrap=whole)
    for line in lines:
        words = _text(verdict_words(line), verdict_style(line))
        table.add_row(*(words if c.name == "verdict" else _text(c.text(line)) for c in shown))
    return table


def _remarks(lines: list[Line], console: Console, *, notes: bool) -> None:
    """Say once per reason what was not run; then, with notes, what is to be known of what was."""
    skipped = [(line.skipped, line) for line in lines if line.skipped and not runs_nowhere(line)]
    noted = [(note, line) for line in lines for note in notes_outside_table(line)] if notes else []
    for heading, remarks in (("Not run, and why:", skipped), ("Notes:", noted)):
        if remarks:
            console.print(f"\n{heading}")
        grouped: dict[str, list[Line]] = {}
        for words, line in remarks:
            grouped.setdefault(words, []).append(line)
        for words, group in grouped.items():
            text = "\n    ".join([f"  {words}", *_places(group)])
            console.print(_text(text, style="dim"), soft_wrap=True)


def _places(group: Iterable[Line]) -> list[str]:
    """Return where something is said of lines: subjects of the same checks and dtypes together."""
    by_subject: dict[str, list[Line]] = {}
    for line in group:
        by_subject.setdefault(line.subject, []).append(line)
    by_place: dict[str, list[str]] = {}
    for subject, lines in by_subject.items():
        by_place.setdefault(also_in(lines), []).append(subject)
    return [f"{', '.join(subjects)}: {place}" for place, subjects in by_place.items()]


def summary(report: Report) -> str:
    """Return the closing lines: verdicts, and what they come to."""
    counts = Counter(verdict_words(line) for line in report.lines)
    order = [str(v) for v in _ORDER] + [f"{v}{KNOWN}" for v in _ORDER]
    words = ", ".join(f"{counts[name]} {name}" for name in order if counts[name])
    cases = sum(n for line in report.lines for v, n in line.counts.items() if v != Verdict.SKIPPED)
    news = unexpected(report.findings)
    subjects = len({line.subject for line in report.lines})
    known = len(report.findings) - len(news)
    parts = [_plural(len(news), "unexpected finding")]
    if causes := len(of_one_cause(news)):
        parts[0] += f" of {_plural(causes, 'kind')}"
    parts += [f"{_plural(known, 'known defect')} confirmed (-v says which)"] if known else []
    left = sum(no_case_left(line) for line in report.lines)
    parts += [f"{_plural(left, 'line')} with no case left but known defects"] if left else []
    failures = len(report.errors) + sum(1 for _ in contradictions(report.certificates))
    failures += sum(line.counts[Verdict.ERROR] for line in report.lines)
    parts += [f"{_plural(failures, 'error')} of the verifier itself"] if failures else []
    count = len(report.unusable)
    kinds = "file or subject" if count == 1 else "files or subjects"
    parts += [f"{count} {kinds} could not be used"] if count else []
    parts += ["nothing was decided"] if report.status == 3 else []
    if report.unreached:
        named = ", ".join(report.unreached[:3]) + (", ..." if len(report.unreached) > 3 else "")
        why = "not run after the first finding" if report.stopped else "not reached in the budget"
        parts += [f"{_plural(len(report.unreached), 'line')} {why} ({named})"]
    parts += [f"{_plural(len(report.short_of_reach), 'subject')} short of the required reach"] * bool(
        report.short_of_reach
    )
    ran = what_ran(report.reach) if counts[str(Verdict.PASS)] else ""
    few = OF_A_FEW_CASES if report.budget == "smoke" and counts[str(Verdict.PASS)] else ""
    told = [text for text in (ran, few, certified_summary(report.certificates)) if text]
    return (
        f"{_plural(subjects, 'subject')}, {_plural(len(report.lines), 'line')}: {words or 'none'}\n"
        f"{_plural(cases, 'case')} in {report.seconds:.0f} s, seed {report.seed}: {'; '.join(parts)}"
    ) + "".join(f"\n{text}" for text in told)


def interruption(report: Report) -> str:
    """Return the one line that ends an interrupted audit."""
    news = unexpected(report.findings)
    kept = sorted({str(Path(f.file).parent) for f in news if f.file})
    cases = f", kept in {', '.join(kept)}" if kept else ""
    lines = _plural(len(report.lines), "line")
    return f"interrupted after {lines}; {_plural(len(news), 'unexpected finding')}{cases}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
