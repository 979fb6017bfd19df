"""Shows an audit while it runs and when it has ended, and ends the command."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from verifier.commands.outcome import INTERRUPTED_STATUS, USAGE_STATUS, complain, say, write_json

if TYPE_CHECKING:
    from verifier.audit.run_audit import Job, Report
    from verifier.records.verdict import Line


NARROW = frozenset({"float16", "bfloat16"})
"""Dtypes of which it can be asked what they cost."""


def audit_with_progress(jobs: list[Job], folder: Path, *, budget: str, seed: int, workers: int) -> Report:
    """Audit; findings are saved as each line ends, so that an audit that is cut short loses none."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from verifier.audit.report.columns import widths
    from verifier.audit.report.terminal import PlainTable
    from verifier.audit.run_audit import audit as run
    from verifier.audit.save import save_line
    from verifier.records.printable import line as printable
    from verifier.subjects.load_file import load_subjects

    console = Console(stderr=True)
    if not sys.stdout.isatty():
        found = [s for path in dict.fromkeys(job.path for job in jobs) for s in load_subjects(path)]
        wide = widths([job.subject for job in jobs], [s.claim.variance or "" for s in found])
        table = PlainTable(widths=wide, say=say)

        def tell(line: Line) -> None:
            save_line(line, folder)
            table.add(line)

        return run(jobs, budget=budget, seed=seed, workers=workers, on_line=tell)
    columns = (
        TextColumn("{task.description:50}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=len(jobs))

        def advance(line: Line) -> None:
            save_line(line, folder)
            progress.update(
                task, advance=1, description=printable(f"{line.subject} {line.check} {line.dtype}")
            )

        return run(jobs, budget=budget, seed=seed, workers=workers, on_line=advance)


@dataclass(frozen=True, kw_only=True)
class Told:
    """What of a report was printed while it was made."""

    lines: bool = False
    findings: bool = False


def finish(
    report: Report,
    jobs: list[Job],
    json_file: Path | None,
    folder: Path,
    *,
    told: Told,
    costs: bool = False,
) -> NoReturn:
    """Save the cases of findings, print the report and end with its status."""
    from rich.console import Console

    from verifier.audit.report.json_document import document
    from verifier.audit.report.terminal import interruption, show
    from verifier.audit.run_audit import close_runners
    from verifier.audit.save import save_findings

    save_findings(report, folder)
    wide = None if sys.stdout.isatty() else 200
    if report.interrupted:
        complain(interruption(report))
    else:
        show(report, Console(width=wide), lines=not told.lines, findings=not told.findings)
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
