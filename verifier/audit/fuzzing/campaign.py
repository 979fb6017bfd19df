"""A campaign of fuzzing: hands batches of cases to workers, learns from them, and writes down what came."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from verifier.audit.examination import SHORT_SECONDS
from verifier.audit.fuzzing.case_batch import BatchResult, CaseBatch, run_batch
from verifier.audit.fuzzing.corpus import Corpus, job_name
from verifier.audit.fuzzing.journal import Begun, Journal, Request, Written
from verifier.audit.fuzzing.progress_of_job import MOST_SEED, UNIT_CASES, JobProgress, mark
from verifier.audit.fuzzing.workers import WorkerDiedError, Workers, WorkersLostError
from verifier.audit.news import News
from verifier.audit.reach_of_subjects import reach_of_lines
from verifier.audit.record import Report
from verifier.audit.request import BUDGETS, parse_seconds
from verifier.audit.run_audit import Job
from verifier.audit.save import save_line, saved
from verifier.records.files import reason
from verifier.records.printable import block
from verifier.records.reach import joined
from verifier.records.verdict import Finding

TICK_SECONDS = 0.5
"""Between two looks at how far a campaign has come."""
FOREVER = 1e9


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What a campaign is asked for.

    budget: a time such as "60s", or the name of a number of cases of each job. seed: None for one of its own.
    out: the folder with its journal and its corpus; findings: the one for cases. lanes: batches of one job
    that draw side by side. steers: whether it climbs. database: see `database_of`.
    """

    budget: str
    out: Path
    findings: Path
    seed: int | None = None
    lanes: int = 1
    steers: bool = True
    database: str = ""


@dataclass(frozen=True, kw_only=True)
class Headway:
    """How far a campaign is: seconds and cases, those of earlier processes included.

    rate: cases a second of this process. best: the largest error/bound of each check. reached: places in the
    sources. findings: those that are not known.
    """

    seconds: float
    cases: int
    rate: float
    best: dict[str, float]
    reached: int
    corpus: int
    findings: int
    where: str


class Watcher(Protocol):
    """Who is told what a campaign does."""

    def say(self, text: str) -> None:
        """Be told something in words."""

    def tell(self, finding: Finding) -> None:
        """Be told of a finding, whose case has been saved."""

    def show(self, status: Headway) -> None:
        """Be told how far it is."""


def fuzz(
    jobs: Sequence[Job],
    wishes: Wishes,
    *,
    open_workers: Callable[[Callable[[News], None]], Workers],
    watcher: Watcher,
) -> Report:
    """Run batches of all jobs until the budget is spent; return the lines with each finding once.

    A campaign that was stopped in the same folder, whatever stopped it, goes on: batches that ended are not
    run again. Ctrl-C stops it; what was found is on disk already.

    Raises:
        SelectionError: another campaign works in the folder, or there are no workers.
        OSError: the folder cannot be written.

    """
    journal = Journal(wishes.out)
    try:
        return _Campaign(jobs=jobs, wishes=wishes, journal=journal, watcher=watcher).run(open_workers)
    finally:
        journal.close()


@dataclass(kw_only=True)
class _Campaign:
    jobs: Sequence[Job]
    wishes: Wishes
    journal: Journal
    watcher: Watcher
    every: list[JobProgress] = field(default_factory=list)
    _running: dict[Future[BatchResult], CaseBatch] = field(default_factory=dict)
    _begun_cases: dict[tuple[str, str, str], int] = field(default_factory=dict)
    _told: set[object] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _unwritten: str = ""
    _before: float = 0.0
    _cases_before: int = 0
    _since: float = field(default_factory=time.monotonic)

    def run(self, open_workers: Callable[[Callable[[News], None]], Workers]) -> Report:
        request, begun = self._begin()
        report = Report(seed=begun.seed, budget=self.wishes.budget)
        workers = open_workers(self._hear)
        try:
            self._work(workers)
            self._finish(request, begun)
        except KeyboardInterrupt:
            report.interrupted = True
        except WorkersLostError as lost:
            report.errors.append(f"{lost}; the same command goes on where this one stopped")
        finally:
            workers.close()
        return self._reported(report)

    @property
    def elapsed(self) -> float:
        """Seconds that the campaign has lasted, those of earlier processes included."""
        return self._before + time.monotonic() - self._since

    # -- beginning and end ---------------------------------------------------------------------

    def _begin(self) -> tuple[Request, Begun]:
        wishes, corpus = self.wishes, Corpus(self.wishes.out / "corpus")
        request = Request(
            jobs=tuple(self.jobs),
            sources=tuple(_hash_of(job.path) for job in self.jobs),
            budget=wishes.budget,
            lanes=wishes.lanes,
            steers=wishes.steers,
            database=wishes.database,
        )
        begun = self.journal.unfinished(request, wishes.seed)
        goes_on = begun is not None
        if begun is None:
            seed = secrets.randbelow(MOST_SEED) if wishes.seed is None else wishes.seed
            names = {job_name(job): corpus.names(job) for job in self.jobs} if wishes.steers else {}
            begun = Begun(seed=seed, lanes=wishes.lanes, corpus=names)
            self._write(lambda: self.journal.begin(request, begun))
        self.every = [self._progress(number, job, begun, corpus) for number, job in enumerate(self.jobs)]
        for text in corpus.unreadable:
            self.watcher.say(f"not read: {text}")
        drawn = f" (drawn; --seed {begun.seed} asks for it again)" if wishes.seed is None else ""
        self.watcher.say(f"seed {begun.seed}{drawn}")
        if goes_on:
            self._go_on()
        return request, begun

    def _progress(self, number: int, job: Job, begun: Begun, corpus: Corpus) -> JobProgress:
        wishes, budget = self.wishes, self.wishes.budget
        wanted = BUDGETS.get(budget)
        cases = UNIT_CASES if wanted is None else min(UNIT_CASES, wanted)
        if wanted is None:
            brief = parse_seconds(budget) * begun.lanes / len(self.jobs) < SHORT_SECONDS
        else:
            brief = wanted <= BUDGETS["quick"]
        return JobProgress(
            number=number,
            job=job,
            seed=begun.seed,
            lanes=begun.lanes,
            generations=None if wanted is None else -(-wanted // (cases * begun.lanes)),
            cases=cases,
            steers=wishes.steers,
            database=wishes.database,
            brief=brief,
            replayed=corpus.read(job, begun.corpus.get(job_name(job), ())),
        )

    def _go_on(self) -> None:
        """Take what the journal says; batches that it does not have will be run."""
        taken = 0
        for entry in self.journal.entries():
            number = entry.place[0]
            if number < len(self.every) and self.every[number].take(entry.place, entry.result):
                taken += 1
                self._before = max(self._before, entry.seconds)
        self._cases_before = self._cases()
        done = f"{taken} batches with {self._cases_before} cases in {self._before:.0f} s are done"
        self.watcher.say(f"goes on where it was stopped: {done}")
        for progress in self.every:
            for line in progress.lines:
                for finding in line.findings:
                    self._tell(progress.number, finding)

    def _finish(self, request: Request, begun: Begun) -> None:
        corpus = Corpus(self.wishes.out / "corpus")
        for job in self.jobs:
            corpus.tidy(job)
        self._write(lambda: self.journal.end(request, begun))

    def _write(self, write: Callable[[], None]) -> None:
        """Write to the folder; where that cannot be done, the search goes on, and it is said once."""
        try:
            write()
        except OSError as error:
            if not self._unwritten:
                self._unwritten = f"{self.wishes.out} cannot be written: {reason(error)}"
                self.watcher.say(f"{self._unwritten}; this campaign cannot be resumed once it is stopped")

    def _reported(self, report: Report) -> Report:
        summed = [(progress, progress.sum()) for progress in self.every]
        report.lines = [line for _, line in summed if line is not None]
        for progress, line in summed:
            errors = [*progress.errors, *progress.errors_of_now]
            report.errors += [text for text in map(block, errors) if text not in report.errors]
            if line is None and not errors:
                job = progress.job
                report.unreached.append(f"{job.subject} {job.check} {job.dtype}")
        report.reach = reach_of_lines(report.lines, ((job.path, job.subject) for job in self.jobs))
        report.seconds = self.elapsed
        return report

    # -- the work ------------------------------------------------------------------------------

    def _work(self, workers: Workers) -> None:
        budget = self.wishes.budget
        end = FOREVER if budget in BUDGETS else parse_seconds(budget)
        while True:
            while len(self._running) < workers.room and (batch := self._next(end, workers)) is not None:
                self.every[batch.place[0]].hand_out(batch.place)
                self._running[workers.begin(run_batch, batch)] = batch
            if not self._running:
                return
            ended, _ = wait(self._running, timeout=TICK_SECONDS, return_when=FIRST_COMPLETED)
            for future in ended:
                self._take(self._running.pop(future), future)
            self.watcher.show(self._status(workers))

    def _next(self, end: float, workers: Workers) -> CaseBatch | None:
        """Return the batch that is to be begun next, None if there is none or no time is left.

        Every job is visited before any is visited again, every dtype meets a check before any meets the next.
        """
        left = end - self.elapsed
        active = [progress for progress in self.every if not progress.over]
        if left <= 0 or not active:
            return None
        position = {name: n for n, name in enumerate(dict.fromkeys(job.check for job in self.jobs))}
        ordered = sorted(active, key=lambda p: (p.generation, position[p.job.check]))
        waiting = [batch for progress in ordered if (batch := next(progress.ready(), None)) is not None]
        if not waiting:
            return None
        if end == FOREVER:
            return waiting[0]
        # Each job of a round gets its part of the time: a slow one takes none of another's.
        round_ = [batch for batch in waiting if batch.place[1] == waiting[0].place[1]]
        share = left * min(1.0, workers.count / len(round_))
        return replace(waiting[0], seconds=share)

    def _take(self, batch: CaseBatch, future: Future[BatchResult]) -> None:
        """Save what a batch found and kept, then write down that it ended.

        Whatever stops this process in between, the batch is run again and counts once.
        """
        progress = self.every[batch.place[0]]
        try:
            result = future.result()
        except WorkerDiedError as died:
            names = f"{batch.job.subject} {batch.job.check} {batch.job.dtype}"
            result = BatchResult(error=f"{names}: a worker process died: {died}")
        line = result.line
        if line is not None:
            before = joined(one.reach for one in progress.lines)
            fresh = progress.fresh(line.findings)
            save_line(line, self.wishes.findings)
            result = replace(result, line=replace(line, reach=line.reach.without(before)))
            for finding in fresh:
                self._tell(progress.number, next(f for f in line.findings if mark(f) == mark(finding)))
        if self.wishes.steers:
            self._write(lambda: Corpus(self.wishes.out / "corpus").add(batch.job, result.kept))
        entry = Written(place=batch.place, seconds=self.elapsed, result=result)
        self._write(lambda: self.journal.add(entry))
        with self._lock:
            self._begun_cases.pop(_names(batch.job), None)
        progress.take(batch.place, result)

    # -- what is told --------------------------------------------------------------------------

    def _hear(self, news: News) -> None:
        """Take news of a batch that runs; they may come in any thread."""
        names = (news.subject, news.check, news.dtype)
        with self._lock:
            self._begun_cases[names] = news.cases
        if news.finding is not None:
            number = next((n for n, job in enumerate(self.jobs) if _names(job) == names), None)
            if number is not None:
                self._tell(number, saved(news.finding, self.wishes.findings))

    def _tell(self, number: int, finding: Finding) -> None:
        """Tell of a finding once, unless it is a known defect."""
        with self._lock:
            key = (number, mark(finding))
            if key in self._told or finding.expected:
                return
            self._told.add(key)
            self.watcher.tell(finding)

    def _cases(self) -> int:
        return sum(progress.cases_run for progress in self.every)

    def _status(self, workers: Workers) -> Headway:
        with self._lock:
            cases = self._cases() + sum(self._begun_cases.values())
        best: dict[str, float] = {}
        for progress in self.every:
            for line in progress.lines:
                worst = line.worst
                if worst is not None:
                    best[line.check] = max(worst.utilisation, best.get(line.check, 0.0))
        now = max(time.monotonic() - self._since, 1e-3)
        return Headway(
            seconds=self.elapsed,
            cases=cases,
            rate=(cases - self._cases_before) / now,
            best=best,
            reached=len({name for progress in self.every for name in progress.known}),
            corpus=sum(len(progress.kept) for progress in self.every),
            findings=len(self._told),
            where=workers.where,
        )


def _names(job: Job) -> tuple[str, str, str]:
    return job.subject, job.check, job.dtype


def _hash_of(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""
