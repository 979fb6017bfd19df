"""Shows an audit while it runs and when it has ended, and ends the command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from verifier.audit.request import Requirements
from verifier.audit.shape_text import USUAL
from verifier.commands.outcome import (
    INTERRUPTED_STATUS,
    USAGE_STATUS,
    complain,
    must_hold_files,
    say,
    stop,
    write_json,
)

if TYPE_CHECKING:
    from verifier.audit.news import News
    from verifier.audit.record import Report
    from verifier.audit.report.json_parts import Document
    from verifier.audit.run_audit import Job
    from verifier.commands.release.record import Release
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


def certify_jobs(
    report: Report, jobs: list[Job], shapes: Sequence[tuple[int, int]], *, workers: int, screen: Screen
) -> None:
    """Certify what was audited, at these shapes, and say what is; note what contradicts a finding."""
    if report.interrupted or report.stopped:
        return
    from verifier.audit.certifying import certificates, contradicted_findings
    from verifier.audit.report.certified_text import certified_lines

    try:
        for found in certificates(jobs, shapes, seed=report.seed, workers=workers):
            report.certificates += found
            lines = certified_lines(found, depths=screen.verbosity > 0)
            for line in lines if screen.verbosity >= 0 else ():
                screen.say(line, "")
        report.certificates += contradicted_findings(report.findings)
    except KeyboardInterrupt:
        report.interrupted = True


@dataclass(frozen=True, kw_only=True)
class Told:
    """What of a report was printed while it was made: its lines, or its findings."""

    lines: bool = False
    findings: bool = False


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is wanted besides the audit.

    costs: of narrow dtypes. release: the measurements of a release.
    required: of errors, reach and certificates. baseline: an earlier report than which nothing may be worse.
    certify: shapes at which certificates are wanted. folder: where the files of a report go.
    """

    costs: bool = False
    release: bool = False
    required: Requirements = field(default_factory=Requirements)
    baseline: Document | None = None
    certify: tuple[tuple[int, int], ...] = ()
    folder: Path | None = None

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """At which certificates are asked for: the usual ones where they are required and none is named."""
        return self.certify or (USUAL if self.required.certificate else ())


def baseline_of(path: Path | None, *, seed: int, budget: str) -> Document | None:
    """Return the earlier report of a file, or none where none is named; seed, budget: of this audit.

    Raises:
        BaselineError: it cannot be compared with.

    """
    if path is None:
        return None
    from verifier.audit.baseline import must_draw_alike, read_baseline

    found = read_baseline(path)
    must_draw_alike(found, {"seed": seed, "budget": budget})
    return found


def must_be_measured(wanted: Wanted) -> None:
    """Reject a requirement of errors where none are measured, and a folder that cannot hold a report."""
    if wanted.folder is not None:
        must_hold_files(wanted.folder, "a report")
    if wanted.required.ulp is not None and not wanted.release:
        raise ValueError("--require ulp=...: errors are measured with --release")


def finish(
    report: Report,
    jobs: list[Job],
    json_file: Path | None,
    folder: Path,
    *,
    told: Told,
    screen: Screen,
    wanted: Wanted | None = None,
) -> NoReturn:
    """Save the cases of findings, print the report and end with its status."""
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
    wanted = wanted or Wanted()
    seen_costs, release = ([], None) if report.interrupted else _measure(jobs, wanted)
    subjects = _subjects(jobs)
    _judge(report, wanted, release, subjects, jobs)
    unwritten = list(dict.fromkeys(f"a case in {f.unwritten}" for f in report.findings if f.unwritten))
    told_of = {**_document(report, release, subjects), "costs": seen_costs}
    if json_file is not None and (why := write_json(json_file, told_of)):
        unwritten.append(why)
    unwritten += _report_files(told_of, wanted.folder)
    close_runners()
    if unwritten:
        complain(f"could not be written: {'; '.join(unwritten)}")
    if report.interrupted:
        sys.exit(INTERRUPTED_STATUS)
    raise typer.Exit(USAGE_STATUS if unwritten else report.status)


def _subjects(jobs: list[Job]) -> list[dict[str, object]]:
    """Return what the subjects of jobs are, as JSON data."""
    from verifier.audit.report.subject_document import subject_documents
    from verifier.subjects.load_file import load_subject

    names = dict.fromkeys((job.path, job.subject) for job in jobs)
    return subject_documents(load_subject(path, name) for path, name in names)


def _report_files(document: Document, folder: Path | None) -> list[str]:
    """Write the files of a report and tell a GitHub workflow; return what could not be written."""
    from verifier.commands.report.github import in_github_actions, tell

    unwritten: list[str] = []
    if folder is not None:
        from verifier.commands.report.files import write_report

        unwritten, first = write_report(document, folder)
        if not unwritten:
            say(f"report: {first}")
    if in_github_actions():
        unwritten += tell(document, Path.cwd())
    return unwritten


def _document(
    report: Report, release: Release | None, subjects: list[dict[str, object]]
) -> dict[str, object]:
    """Return the report as JSON data, with the measurements of a release if there are any."""
    from verifier.audit.report.json_document import document

    found = {**document(report), "subjects": subjects}
    if release is None:
        return found
    from verifier.commands.release.document import release_document

    return {**found, "release": release_document(release)}


def _judge(
    report: Report,
    wanted: Wanted,
    release: Release | None,
    subjects: list[dict[str, object]],
    jobs: list[Job],
) -> None:
    """Note in the report what is required and not so, and where it is worse than the baseline; say it."""
    if report.interrupted:
        return
    if release is not None:
        from verifier.commands.release.gates import unmet

        report.unmet += unmet(release.dtypes, wanted.required)
    if wanted.required.certificate:
        from verifier.audit.report.certified_text import uncertified

        report.unmet += uncertified(report.certificates)
    if not report.stopped:
        from verifier.commands.never_measured import never_measured

        measured = () if release is None else release.dtypes
        report.unmet += never_measured(jobs, report, measured, wanted.required)
    for one in report.unmet:
        say(f"not met: {one.text}")
    if wanted.baseline is not None:
        from verifier.audit.baseline import BaselineError, told, worse
        from verifier.records.remark import Remark

        try:
            found = worse(wanted.baseline, _document(report, release, subjects))
        except BaselineError as error:
            stop(str(error))
        for line in told(found) if found else ["nothing is worse than the baseline"]:
            say(line)
        report.unmet += [Remark(one.subject, f"worse than the baseline: {one.text}") for one in found]


def _measure(jobs: list[Job], wanted: Wanted) -> tuple[list[object], Release | None]:
    """Print what dtypes of jobs cost; return the same as JSON data, and as the record of a release.

    For a release all dtypes are measured, and more of each.
    """
    if not (wanted.costs or wanted.release):
        return [], None
    from verifier.audit.report.json_document import plain
    from verifier.commands.cost_of_dtype import cost, cost_document, cost_lines
    from verifier.subjects.load_file import load_subject

    costs: list[object] = []
    records = []
    chosen = [job for job in jobs if job.backend and (wanted.release or job.dtype in NARROW)]
    for dtype, path, name, backend in dict.fromkeys((j.dtype, j.path, j.subject, j.backend) for j in chosen):
        subject = load_subject(path, name)
        told = cost(subject, dtype, str(backend), grid=wanted.release)
        for line in cost_lines(told):
            say(line)
        if dtype in NARROW:
            costs.append(plain(cost_document(told)))
        if wanted.release:
            from verifier.commands.release.measure import record

            records.append(record(subject, told))
    if not wanted.release:
        return costs, None
    from verifier.commands.release.measure import environment
    from verifier.commands.release.record import Release

    return costs, Release(dtypes=tuple(records), environment=environment())
