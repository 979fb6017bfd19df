"""Searches kernels for failures for as long as it is given; findings are saved as they are found."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

from verifier.audit.reach_of_subjects import reach_of_lines
from verifier.audit.record import Report
from verifier.audit.report.finding_text import cause, failure_text, replay_command
from verifier.audit.request import BUDGETS, parse_seconds
from verifier.audit.rules import failure_key
from verifier.audit.run_audit import Job, run_job
from verifier.audit.save import save_line
from verifier.audit.tally import merged
from verifier.records.printable import block
from verifier.records.verdict import FailureKey, Finding, Line

ROUND_CASES = 20
"""Cases of one job in one round: all jobs are visited before any is visited again."""

Mark = tuple[FailureKey, bool]
"""What makes two findings of one job the same one: their key, and whether they are a known defect."""


def fuzz(
    jobs: Sequence[Job], *, budget: str, seed: int, folder: Path, say: Callable[[str], None] = print
) -> Report:
    """Run all jobs in rounds with a new seed each; return the lines with each finding once.

    budget: a time such as "60s", or the name of a number of cases per job. Ctrl-C ends the search;
    what was found is on disk already.
    """
    started = time.monotonic()
    rounds = -(-BUDGETS[budget] // ROUND_CASES) if budget in BUDGETS else 10**9
    end = started + (parse_seconds(budget) if budget not in BUDGETS else 1e9)
    report = Report(seed=seed, budget=budget)
    lines: dict[int, Line] = {}
    known: dict[int, set[Mark]] = {}
    # Every dtype meets a check before any meets the next: a short search leaves no dtype out.
    position = {name: number for number, name in enumerate(dict.fromkeys(job.check for job in jobs))}
    order = sorted(enumerate(jobs), key=lambda item: position[item[1].check])
    tell = _teller(say)
    try:
        for number in range(rounds):
            if time.monotonic() >= end:
                break
            for place, (index, job) in enumerate(order):
                # Each job of a round gets its part of the time: a slow one takes none of another's.
                left = (end - time.monotonic()) / (len(order) - place)
                if left <= 0:
                    break
                marks = known.setdefault(index, set())
                _visit(report, lines, marks, index, job, (ROUND_CASES, left), seed, number, folder, tell)
            if number == 0 and all(line.skipped for line in lines.values()) and not report.errors:
                break  # nothing here can be run, however long
    except KeyboardInterrupt:
        report.interrupted = True
    report.lines = [lines[i] for i in sorted(lines)]
    report.unreached = [f"{j.subject} {j.check} {j.dtype}" for i, j in order if i not in lines]
    report.reach = reach_of_lines(report.lines, ((job.path, job.subject) for job in jobs))
    report.seconds = time.monotonic() - started
    return report


def _visit(  # noqa: PLR0917 (the state of one search)
    report: Report,
    lines: dict[int, Line],
    known: set[Mark],
    index: int,
    job: Job,
    share: tuple[int, float | None],
    seed: int,
    number: int,
    folder: Path,
    tell: Callable[[Finding], None],
) -> None:
    first = lines[index].listed if index in lines else 0  # no round repeats what an earlier one tried
    reported = frozenset(key for key, expected in known if not expected)
    found = run_job(job, share, seed + number, first=first, reported=reported)
    if isinstance(found, str):
        found = block(found)
        if found not in report.errors:
            report.errors.append(found)
        return
    # A known defect must not hide a new failure of the same kind: it has a mark of its own.
    fresh = [f for f in found.findings if _mark(f) not in known]
    known.update(_mark(f) for f in fresh)
    found.findings = fresh
    save_line(found, folder)
    for finding in found.findings:
        if not finding.expected:
            tell(finding)
    lines[index] = found if index not in lines else merged(lines[index], found)


def _teller(say: Callable[[str], None]) -> Callable[[Finding], None]:
    """Return a function that tells a finding in full, or in one line if one of its cause was told before."""
    told: dict[Hashable, Finding] = {}

    def tell(finding: Finding) -> None:
        before = told.setdefault(cause(finding), finding)
        if before is finding:
            say("\n" + failure_text(finding))
            return
        head = f"{finding.verdict}  {finding.subject}  {finding.check}  {finding.dtype}"
        say(f"\n{head}  as above in {before.check} ({before.dtype})")
        say(f"  replay       {replay_command(finding)}")

    return tell


def _mark(finding: Finding) -> Mark:
    return failure_key(finding.outcome), finding.expected
