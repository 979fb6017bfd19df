"""Runs a campaign of fuzzing for the command, and shows how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.status import Status

from verifier.audit.fuzzing.campaign import Headway, Watcher, Wishes, fuzz
from verifier.audit.fuzzing.example_database import database_of
from verifier.audit.fuzzing.workers import HereAlone, LocalWorkers, Workers
from verifier.audit.news import News
from verifier.audit.record import Report
from verifier.audit.report.finding_text import cause, failure_text, replay_command
from verifier.audit.request import SelectionError
from verifier.audit.run_audit import Job, default_workers
from verifier.commands.screen import Screen
from verifier.records.printable import line as printable
from verifier.records.verdict import Finding

APART_SECONDS = 10.0
"""Between two lines of progress where no terminal is."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command is asked for, see its options."""

    budget: str
    seed: int | None
    workers: int
    out: Path
    findings: Path
    scheduler: str
    database: str
    steers: bool


def workers_asked_for(text: str) -> int:
    """Return how many worker processes "auto" or a number means.

    Raises:
        SelectionError: it is neither.

    """
    if text == "auto":
        return default_workers()
    if not text.isdecimal() or int(text) < 1:
        raise SelectionError(f"--workers {text!r} is neither auto nor a number of processes")
    return int(text)


def fuzz_with_progress(jobs: Sequence[Job], asked: Asked, screen: Screen) -> Report:
    """Run a campaign; say what is found as it is found, and how far it is."""
    if asked.database:
        database_of(asked.database, "")  # what is wrong with it is said before anything is run
    with ExitStack() as stack:
        opened = _opener(asked, jobs, screen.say)
        if asked.scheduler:  # there are no more lanes than workers
            workers = opened(lambda _: None)
            lanes, opened = _lanes(workers.count, len(jobs)), lambda _: workers
        else:
            lanes = _lanes(asked.workers, len(jobs))
        wishes = Wishes(
            budget=asked.budget,
            out=asked.out,
            findings=asked.findings,
            seed=asked.seed,
            lanes=lanes,
            steers=asked.steers,
            database=asked.database,
        )
        watcher = Telling(screen, stack)
        report = fuzz(jobs, wishes, open_workers=opened, watcher=watcher)
    if watcher.last is not None:
        for text in summed_up(watcher.last, asked):
            screen.say(text)
    return report


def _lanes(workers: int, jobs: int) -> int:
    """Return how many batches of one job draw side by side, so that each worker has one."""
    return max(1, -(-workers // jobs))


def _opener(
    asked: Asked, jobs: Sequence[Job], say: Callable[[str], None]
) -> Callable[[Callable[[News], None]], Workers]:
    places = sorted({job.backend for job in jobs if job.backend and not job.missing})

    def opened(on_news: Callable[[News], None]) -> Workers:
        if asked.scheduler:
            from verifier.audit.fuzzing.distributed_workers import ClusterWorkers

            return ClusterWorkers(asked.scheduler, backends=places, say=say)
        return LocalWorkers(asked.workers, on_news, places) if asked.workers > 1 else HereAlone(on_news)

    return opened


@dataclass
class Telling(Watcher):
    """Says a finding in full, or in a line if one of its cause was told before; shows progress.

    last: how far the campaign was when it was asked the last time.
    """

    screen: Screen
    stack: ExitStack
    last: Headway | None = None
    _told: dict[Hashable, Finding] = field(default_factory=dict)
    _said: float = field(default_factory=time.monotonic)
    _spinner: Status | None = None

    def say(self, text: str) -> None:
        """Say something in words."""
        self.screen.say(text)

    def tell(self, finding: Finding) -> None:
        """Tell of a finding."""
        before = self._told.setdefault(cause(finding), finding)
        if before is finding:
            self.screen.say("\n" + failure_text(finding))
            return
        head = f"{finding.verdict}  {finding.subject}  {finding.check}  {finding.dtype}"
        self.screen.say(f"\n{head}  as above in {before.check} ({before.dtype})")
        self.screen.say(f"  replay       {replay_command(finding)}")

    def show(self, status: Headway) -> None:
        """Show how far it is: below what is said on a terminal, else in a line now and then."""
        self.last, text = status, progress_text(status)
        if self.screen.is_terminal:
            if self._spinner is None:
                self._spinner = self.stack.enter_context(self.screen.console.status(text))
            self._spinner.update(text)
        elif time.monotonic() - self._said >= APART_SECONDS:
            self._said = time.monotonic()
            self.screen.say(text)


def progress_text(status: Headway) -> str:
    """Return a line that says how far a campaign is."""
    found = f"{status.findings} finding{'' if status.findings == 1 else 's'}"
    parts = [
        f"{status.seconds:.0f} s",
        f"{status.cases} cases ({status.rate:.1f} a second)",
        found,
        f"{status.reached} places reached",
        f"corpus {status.corpus}",
    ]
    if status.best:
        ordered = sorted(status.best.items(), key=lambda one: -one[1])
        parts.append("error/bound " + ", ".join(f"{check} {best:.3g}" for check, best in ordered))
    return printable("  ".join(parts))


def summed_up(status: Headway, asked: Asked) -> list[str]:
    """Return what is said when a campaign has ended."""
    kept = f"; {asked.out / 'corpus'} keeps what reached something new" if asked.steers else ""
    return ["", f"{progress_text(status)}, on {status.where}{kept}"]
