"""Shows an audit while it runs and when it has ended, and ends the command."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from verifier.commands.outcome import INTERRUPTED_STATUS, USAGE_STATUS, complain, say, write_json

if TYPE_CHECKING:
    from verifier.audit.news import News
    from verifier.audit.run_audit import Job, Report
    from verifier.commands.screen import Screen
    from verifier.records.verdict import Line


NARROW = frozenset({"float16", "bfloat16"})
"""Dtypes of which it can be asked what they cost."""


def audit_with_progress(
    jobs: list[Job],
    folder: Path,
    *,
    budget: str,
    seed: int,
    workers: int,
    screen: Screen,
    stop_at_finding: bool,
) -> Report:
    """Audit and say what is found; cases of findings are saved as each line ends: none is lost to Ctrl-C."""
    from verifier.audit.report.as_it_runs import AsItRuns
    from verifier.audit.run_audit import audit as run
    from verifier.audit.save import save_line, saved
    from verifier.commands.screen import Bar
    from verifier.subjects.load_file import load_subjects

    found = [s for path in dict.fromkeys(job.path for job in jobs) for s in load_subjects(path)]
    told = AsItRuns(
        jobs=jobs,
        say=screen.say,
        verbosity=screen.verbosity,
        variances=[s.claim.variance or "" for s in found],
        defects=any(s.known_defects for s in found if s.name in {job.subject for job in jobs}),
        tables=screen.is_terminal,
        room=screen.console.width if screen.is_terminal else None,
        traceback=screen.traceback,
    )
    with Bar(screen, jobs) as bar:

        def ended(line: Line) -> None:
            save_line(line, folder)
            told.add(line)
            bar.add(line)

        def failed(job: Job) -> None:
            told.fail(job)
            bar.fail(job)

        def heard(news: News) -> None:
            bar.hear(news)
            if news.first_cases:
                told.tell_first_cases(news.subject, news.dtype, news.first_cases)
            if news.finding is not None:
                told.tell(saved(news.finding, folder))
            for words in news.words.splitlines():
                screen.say(f"{news.subject}| {words}", "dim")

        report = run(
            jobs,
            budget=budget,
            seed=seed,
            workers=workers,
            on_line=ended,
            on_failure=failed,
            on_news=heard,
            stop_at_finding=stop_at_finding,
            first_cases=True,
        )
    told.end()
    return report


@dataclass(frozen=True, kw_only=True)
class Told:
    """What of a report was printed while it was made: its lines, or its findings."""

    lines: bool = False
    findings: bool = False


def finish(
    report: Report,
    jobs: list[Job],
    json_file: Path | None,
    folder: Path,
    *,
    told: Told,
    screen: Screen,
    costs: bool = False,
) -> NoReturn:
    """Save the cases of findings, print the report and end with its status."""
    from verifier.audit.report.json_document import document
    from verifier.audit.report.terminal import interruption, show
    from verifier.audit.run_audit import close_runners
    from verifier.audit.save import save_findings

    save_findings(report, folder)
    if report.interrupted:
        complain(interruption(report))
    else:
        show(
            report,
            screen.console,
            verbosity=screen.verbosity,
            lines=not told.lines,
            findings=not told.findings,
        )
    seen_costs = _show_costs(jobs) if costs and not report.interrupted else []
    unwritten = list(dict.fromkeys(f"a case in {f.unwritten}" for f in report.findings if f.unwritten))
    if json_file is not None and (why := write_json(json_file, {**document(report), "costs": seen_costs})):
        unwritten.append(why)
    close_runners()
    if unwritten:
        complain(f"could not be written: {'; '.join(unwritten)}")
    if report.interrupted:
        sys.exit(INTERRUPTED_STATUS)
    raise typer.Exit(USAGE_STATUS if unwritten else report.status)


def _show_costs(jobs: list[Job]) -> list[object]:
    """Print what the narrow dtypes of jobs cost, and return the same as JSON data."""
    from verifier.audit.report.json_document import plain
    from verifier.commands.cost_of_dtype import cost, cost_document, cost_lines
    from verifier.subjects.load_file import load_subject

    costs: list[object] = []
    narrow = {(j.dtype, j.path, j.subject, j.backend): None for j in jobs if j.dtype in NARROW and j.backend}
    for dtype, path, name, backend in narrow:
        told = cost(load_subject(path, name), dtype, backend)
        for line in cost_lines(told):
            say(line)
        costs.append(plain(cost_document(told)))
    return costs
