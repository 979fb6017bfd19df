"""The report of an audit for a person: a table and the findings on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from verifier.audit import Report
from verifier.report.failure import failure_text
from verifier.verdicts import Line, Verdict, Worst

COLUMNS = (
    "subject",
    "dtype",
    "check",
    "variance",
    "worst ulp",
    "row ulp",
    "bound",
    "error/bound",
    "error/two-pass",
    "kappa",
    "cases",
    "verdict",
)
_STYLES = {Verdict.PASS: "green", Verdict.SKIPPED: "dim", Verdict.UNDECIDED: "yellow"}


def show(report: Report, console: Console) -> None:
    """Print the table, the findings and a summary."""
    if console.is_terminal:
        console.print(_table(report.lines))
    show_findings(report, console)
    _remarks(report.lines, console)
    for error in report.errors:
        console.print(Text(error, style="red"))
    console.print(summary(report))


def show_findings(report: Report, console: Console) -> None:
    """Print every finding; known defects after the unexpected ones, in one line each."""
    for finding in (f for f in report.findings if not f.expected):
        console.print()
        console.print(Text(failure_text(finding)), soft_wrap=True)
    known = [f for f in report.findings if f.expected]
    if known:
        console.print(f"\n{len(known)} declared known defect(s) confirmed by their witnesses:")
    for finding in known:
        text = f"  {finding.subject} {finding.check} {finding.dtype}: {finding.reason}"
        console.print(Text(text), soft_wrap=True)


def plain_line(line: Line) -> str:
    """Return one line of the table for logs."""
    return "  ".join(_cells(line))


def _table(lines: Iterable[Line]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, overflow="fold")
    for line in lines:
        style = "red" if line.unexpected else _STYLES.get(line.verdict, "magenta")
        cells = _cells(line)
        table.add_row(*cells[:-1], Text(cells[-1], style=style))
    return table


def _cells(line: Line) -> list[str]:
    worst = line.worst
    return [
        line.subject,
        line.dtype,
        line.check,
        line.variance or "-",
        _number(line.worst_ulp) if line.outputs else "-",
        _number(line.worst_row_ulp) if line.outputs else "-",
        _bound(worst),
        _number(worst.utilisation) if worst else "-",
        _number(max((w.canonical for w in line.outputs.values()), default=math.nan)),
        _kappa(line),
        _counts(line.counts),
        _verdict(line),
    ]


def _verdict(line: Line) -> str:
    if line.skipped:
        return "SKIPPED"
    known = sum(f.expected for f in line.findings)
    unexpected = len(line.findings) - known
    if known and not unexpected:
        return f"{line.verdict} ({known} known)"
    return str(line.verdict)


def _bound(worst: Worst | None) -> str:
    return "-" if worst is None or math.isnan(worst.bound) else f"{worst.bound:.3g}"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3g}"


def _kappa(line: Line) -> str:
    low, high = line.kappa
    return "-" if low > high else f"{low:.2g}..{high:.2g}"


def _counts(counts: Counter[Verdict]) -> str:
    words = {Verdict.PASS: "", Verdict.NO_THEOREM: " no theorem", Verdict.SKIPPED: " outside the domain"}
    return ", ".join(f"{n}{words.get(v, f' {v}')}" for v, n in sorted(counts.items()) if n) or "0"


def _remarks(lines: list[Line], console: Console) -> None:
    """Say once per reason what was not run; then what is to be known of what was."""
    skipped = [(line.skipped, line) for line in lines if line.skipped]
    noted = [(note, line) for line in lines for note in line.notes]
    for heading, remarks in (("Not run, and why:", skipped), ("Notes:", noted)):
        if remarks:
            console.print(f"\n{heading}")
        grouped: dict[str, list[Line]] = {}
        for words, line in remarks:
            grouped.setdefault(words, []).append(line)
        for words, group in grouped.items():
            names = ", ".join(dict.fromkeys(f"{line.subject}/{line.check}" for line in group))
            dtypes = ", ".join(dict.fromkeys(line.dtype for line in group))
            text = f"  {words}\n    {_shorten(names)} ({dtypes})"
            console.print(Text(text, style="dim"), soft_wrap=True)


def _shorten(names: str, limit: int = 300) -> str:
    return names if len(names) <= limit else names[:limit].rsplit(",", 1)[0] + ", ..."


def summary(report: Report) -> str:
    """Return the closing line."""
    counts = Counter(str(line.verdict) for line in report.lines)
    cases = sum(n for line in report.lines for v, n in line.counts.items() if v != Verdict.SKIPPED)
    words = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
    unexpected = sum(not f.expected for f in report.findings)
    known = len(report.findings) - unexpected
    subjects = len({line.subject for line in report.lines})
    end = " (interrupted: what was found is kept)" if report.interrupted else ""
    return (
        f"\n{subjects} subjects, {len(report.lines)} lines: {words}; {cases} cases, "
        f"{unexpected} unexpected finding(s), {known} known defect(s) confirmed, "
        f"{report.seconds:.0f} s, seed {report.seed}{end}"
    )
