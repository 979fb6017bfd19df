"""Audits subjects: every check on every dtype, spread over worker processes."""

from __future__ import annotations

import atexit
import itertools
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from verifier.audit import rules
from verifier.audit.budget import Budget
from verifier.audit.examination import Examination
from verifier.audit.first_cases import CHECKS as FIRST_CHECKS
from verifier.audit.first_cases import try_first_cases
from verifier.audit.news import News, Reporter, heard_by
from verifier.audit.reach_of_subjects import reach_of_lines
from verifier.audit.read_claim import with_read_claim
from verifier.audit.record import Report
from verifier.audit.request import (
    ALL_CONFIGURATIONS,
    BUDGETS,
    FIRST_CONFIGURATION,
    SelectionError,
    did_you_mean,
    must_be_known,
    parse_seconds,
)
from verifier.audit.worker_pool import Died, pooled
from verifier.checks import autotuning, check, checks
from verifier.execution import Runner
from verifier.execution.backend import Power
from verifier.execution.backends import backends, can, default_backend
from verifier.ops import ops
from verifier.records.printable import block
from verifier.records.subject import Subject
from verifier.records.verdict import FailureKey, Line
from verifier.subjects.libraries import libraries_found, why_absent
from verifier.subjects.load_file import load_subject, load_subjects


@dataclass(frozen=True, kw_only=True)
class Job:
    """One line of an audit, as plain data for a worker process; heard: what the kernel prints is told.

    missing: why it is not run. unknown: what its declaration names and nobody knows, in words, or nothing.
    multiprocessors: of the device that the machine plays; 0: as it usually has.
    first_dtype: see `Examination`.
    """

    path: str
    subject: str
    check: str
    dtype: str
    backend: str | None
    missing: str = ""
    unknown: str = ""
    heard: bool = False
    multiprocessors: int = 0
    first_dtype: str = ""


def select(
    paths: Sequence[Path],
    *,
    dtypes: Sequence[str] = (),
    check_names: Sequence[str] = (),
    backend_name: str | None = None,
    subjects: Sequence[str] = (),
    fits: Callable[[str], bool] = lambda _: True,
    all_dtypes: bool = True,
    multiprocessors: int = 0,
    autotune: str = ALL_CONFIGURATIONS,
) -> list[Job]:
    """List the jobs for kernel files, restricted to what is named; see `runs_on` for `all_dtypes`.

    fits: says of the name of a subject whether it is wanted. multiprocessors: see `Job`.
    autotune: ALL_CONFIGURATIONS, or FIRST_CONFIGURATION: the check `autotuning`, which runs the others, is
    left out.

    Raises:
        LoadError: a file does not load.
        SelectionError: a name is unknown, or nothing is left.

    """
    must_be_known("check", check_names, tuple(checks()))
    must_be_known("backend", (backend_name,) if backend_name else (), tuple(backends()))
    if backend_name and (reason := backends()[backend_name].unavailable()):
        raise SelectionError(f"backend {backend_name!r} cannot be used here: {reason}")
    found = [subject for path in paths for subject in load_subjects(path)]
    must_be_known("subject", subjects, tuple(s.name for s in found))
    chosen = [s for s in found if (not subjects or s.name in subjects) and fits(s.name)]
    if found and not chosen:
        there_are = ", ".join(s.name for s in found)
        raise SelectionError(f"no subject fits what is asked for; there are: {there_are}")
    offered = sorted({d for s in chosen for d in s.dtypes})
    missing = [d for d in dtypes if d not in offered]
    if missing:
        raise SelectionError(
            f"no subject declares dtype {', '.join(missing)}; declared are {', '.join(offered)}"
        )
    every = [job for s in chosen for job in _jobs(s, dtypes, check_names or tuple(checks()), backend_name)]
    by_name = {s.name: s for s in chosen}
    jobs = [j for j in every if all_dtypes or runs_on(by_name[j.subject], j.check, j.dtype)]
    if not jobs:
        raise SelectionError("nothing to run: no subject is left")
    return [settled(job, multiprocessors, autotune) for job in jobs]


def settled(job: Job, multiprocessors: int, autotune: str) -> Job:
    """Return a job with what a project has set, see `select`."""
    missing = job.missing
    if autotune == FIRST_CONFIGURATION and job.check == autotuning.NAME:
        missing = missing or f"left out: autotune is {autotune!r}"
    return replace(job, multiprocessors=multiprocessors, missing=missing)


def runs_on(subject: Subject, check_name: str, dtype: str) -> bool:
    """Return whether a check runs on this dtype where most run on one: the first, or what it needs.

    Compiled kernels are also lifted to float64 from the first dtype.
    """
    the_check, needs = check(check_name), {subject.dtypes[0]}
    if the_check.IN_FLOAT64 and "float64" in subject.dtypes:
        needs = {"float64"} | (needs if subject.language != "torch" else set())
    return the_check.EVERY_DTYPE or dtype in needs


def _jobs(
    subject: Subject, dtypes: Sequence[str], check_names: Sequence[str], backend_name: str | None
) -> Iterator[Job]:
    unknown = unknown_word(subject)
    name, missing = _placed(subject, backend_name)
    asked = [dtype for dtype in subject.dtypes if not dtypes or dtype in dtypes]
    for dtype in asked:
        for check_name in check_names:
            yield Job(
                path=str(subject.path),
                subject=subject.name,
                check=check_name,
                dtype=dtype,
                backend=name,
                missing=missing,
                unknown=unknown,
                first_dtype=asked[0],
            )


def audit(
    jobs: Sequence[Job],
    *,
    budget: str = "quick",
    seed: int = 0,
    workers: int = 1,
    on_line: Callable[[Line], None] = lambda _: None,
    on_failure: Callable[[Job], None] = lambda _: None,
    on_news: Callable[[News], None] = lambda _: None,
    stop_at_finding: bool = False,
    first_cases: bool = False,
) -> Report:
    """Run the jobs and collect their lines, in the order of the jobs.

    workers: so many processes; one alone is this one.
    budget: "smoke", "quick", "standard", "deep" or a number of seconds for the whole audit, which is divided
    evenly and redistributed as jobs end early. Ctrl-C keeps what was found.
    on_line, on_failure: told of each job when it has ended, the latter where the verifier itself failed.
    on_news: told of lines that have begun, how many cases they have judged, and of findings at once.
    stop_at_finding: at the first unexpected one; its line ends there, and no other begins.
    first_cases: one case of each kind of each subject is judged before all others, and told of. The lines are
    the same.
    """
    started = time.monotonic()
    report = Report(seed=seed, budget=budget)
    lines: dict[int, Line] = {}
    try:
        shares = _shares(budget, len(jobs), workers)
        for index, result in _results(
            jobs, shares, seed, workers, on_news, ahead=first_cases, stops=stop_at_finding
        ):
            if isinstance(result, Line):
                lines[index] = result
                on_line(result)
                if stop_at_finding and rules.unexpected(result.findings):
                    report.stopped = True
                    break
            else:
                report.errors.append(block(result))
                on_failure(jobs[index])
    except KeyboardInterrupt:
        report.interrupted = True
    report.lines = [lines[i] for i in sorted(lines)]
    if report.stopped or budget not in BUDGETS:
        report.unreached = [
            f"{job.subject} {job.check} {job.dtype}"
            for i, job in enumerate(jobs)
            if i not in lines or not rules.begun(lines[i])
        ]
    report.reach = reach_of_lines(report.lines, ((job.path, job.subject) for job in jobs), asks=True)
    report.libraries = libraries_found(job.path for job in jobs)
    report.seconds = time.monotonic() - started
    return report


def _shares(budget: str, count: int, workers: int) -> Callable[[int], tuple[int, float | None]]:
    """Return a function of the jobs started so far: the (cases, seconds) of the next one."""
    if budget in BUDGETS:
        return lambda _: (BUDGETS[budget], None)
    end = time.monotonic() + parse_seconds(budget)

    def share(started: int) -> tuple[int, float | None]:
        return 10**9, max(end - time.monotonic(), 0.0) * workers / max(count - started, workers)

    return share


Result = Line | str


def _results(
    jobs: Sequence[Job],
    share: Callable[[int], tuple[int, float | None]],
    seed: int,
    workers: int,
    on_news: Callable[[News], None],
    *,
    ahead: bool,
    stops: bool,
) -> Iterator[tuple[int, Result]]:
    if workers <= 1:
        whole = {of_one[0]: of_one for of_one in _by_subject(jobs)} if ahead else {}
        for index in range(len(jobs)):
            at = index
            with heard_by(on_news):
                if index in whole:
                    _begin([jobs[i] for i in whole[index]], share(index), seed, stops=stops)
                    at = next((i for i in whole[index] if stops and _failed_ahead(jobs[i])), index)
                result = run_job(jobs[at], share(index), seed, stops=stops)
            yield at, result
        return
    together = list(groups(jobs)) if ahead else [(index,) for index in range(len(jobs))]
    started = itertools.count()
    tasks = (
        (number, ([(jobs[i], share(next(started))) for i in group], seed, ahead, stops))
        for number, group in enumerate(together)
    )
    places = {job.backend for job in jobs if job.backend and not job.missing and not job.multiprocessors}
    with closing(pooled(run_jobs, tasks, workers, backends=sorted(places), on_news=on_news)) as results:
        for number, found in results:
            for place, index in enumerate(together[number]):
                job = jobs[index]
                if isinstance(found, Died):
                    names = f"{job.subject} {job.check} {job.dtype}"
                    yield index, f"{names}: a worker process died: {found.message}"
                elif (ended := found[place]) is not None:
                    yield index, ended


def _by_subject(jobs: Sequence[Job]) -> list[list[int]]:
    """Return the numbers of jobs, those of each subject together."""
    found: dict[tuple[str, str], list[int]] = {}
    for index, job in enumerate(jobs):
        found.setdefault((job.path, job.subject), []).append(index)
    return list(found.values())


def groups(jobs: Sequence[Job]) -> Iterator[tuple[int, ...]]:
    """Yield the numbers of jobs that one worker is to run: of each dtype those that judge first cases.

    Of each subject they come before the others, which are groups of one.
    """
    for of_one in _by_subject(jobs):
        early = [index for index in of_one if jobs[index].check in FIRST_CHECKS]
        for dtype in dict.fromkeys(jobs[index].dtype for index in early):
            yield tuple(index for index in early if jobs[index].dtype == dtype)
        yield from ((index,) for index in of_one if index not in early)


def unknown_word(subject: Subject) -> str:
    """Say that a declaration names an op or a variance algorithm that does not exist, or nothing."""
    from verifier.bounds.variance import algorithms

    if subject.op not in ops():
        meant = did_you_mean(subject.op, ops())
        return f"there is no op {subject.op!r}{meant}; there are: {', '.join(ops())}"
    variance = subject.claim.variance
    if ops()[subject.op].needs_variance and variance is not None and variance not in algorithms():
        meant = did_you_mean(variance, algorithms())
        return f"there is no variance algorithm {variance!r}{meant}; there are: {', '.join(algorithms())}"
    return ""


def unusable_subjects(jobs: Iterable[Job]) -> list[str]:
    """Return the subjects whose declarations name what does not exist, each with what that is."""
    return [*dict.fromkeys(f"{job.subject} ({job.path}): {job.unknown}" for job in jobs if job.unknown)]


def _placed(subject: Subject, backend_name: str | None) -> tuple[str | None, str]:
    """Return the backend that runs a subject, or None and why none does.

    backend_name: the one that is asked for; without, the best that is here.
    """
    if unable := unknown_word(subject) or why_absent(subject):
        return None, unable
    if backend_name is None:
        return default_backend(subject)
    place = backends()[backend_name]
    if subject.language not in place.languages:
        able = ", ".join(name for name, b in backends().items() if subject.language in b.languages)
        text = f"backend {backend_name} does not run subjects in {subject.language} (that is for {able})"
        return None, text
    reason = place.unavailable()
    return (backend_name, "") if reason is None else (None, f"{backend_name}: {reason}")


_runners: dict[tuple[str, int], Runner] = {}


def run_job(
    job: Job,
    share: tuple[int, float | None],
    seed: int,
    *,
    first: int = 0,
    reported: frozenset[FailureKey] = frozenset(),
    stops: bool = False,
) -> Result:
    """Run one job in this process; an error of our own comes back as text and stops nothing.

    first, reported: what earlier searches have tried and found, see `Examination`; stops: see `Search`.
    """
    reporter = Reporter(job.subject, job.check, job.dtype)
    try:
        early = _begun.pop(job, None)
        if isinstance(early, Examination):
            early.renew(_end(share))
        begun = early or examination(job, share, seed, first=first, reported=reported, stops=stops)
        if not isinstance(begun, Examination):
            return begun
        reporter.begin()
        begun.runner.on_words = reporter.words if job.heard else None
        begun.on_case = reporter.case
        return begun.run()
    except Exception:
        return own_failure(job)


def own_failure(job: Job) -> str:
    """Say that the exception being handled is the verifier's own, on a job."""
    return f"{job.subject} {job.check} {job.dtype}: the verifier itself failed\n{traceback.format_exc()}"


def run_jobs(
    tasks: Sequence[tuple[Job, tuple[int, float | None]]], seed: int, ahead: bool, stops: bool
) -> list[Result | None]:
    """Run jobs of one subject and dtype one after another in this process; ahead: first cases before.

    stops: at the first unexpected finding; there is no result of jobs that have not been run.
    """
    found: list[Result | None] = [None] * len(tasks)
    if ahead:
        _begin([job for job, _ in tasks], tasks[0][1], seed, stops=stops)
    order = sorted(range(len(tasks)), key=lambda place: not (stops and _failed_ahead(tasks[place][0])))
    for place in order:
        job, share = tasks[place]
        result = found[place] = run_job(job, share, seed, stops=stops)
        if stops and isinstance(result, Line) and rules.unexpected(result.findings):
            break
    return found


def _failed_ahead(job: Job) -> bool:
    begun = _begun.get(job)
    return isinstance(begun, Examination) and begun.has_failed


_begun: dict[Job, Examination | str] = {}
"""Examinations of this process whose first cases have been judged, until they are run, or how that failed."""


def _begin(jobs: Sequence[Job], share: tuple[int, float | None], seed: int, *, stops: bool) -> None:
    """Judge the first cases of one subject, of each dtype in turn, in the time of all their jobs.

    share: of each job; what is used of it is lost to the rest of the audit, not to the job alone.
    """
    _begun.clear()
    early = [job for job in jobs if job.check in FIRST_CHECKS]
    for dtype in dict.fromkeys(job.dtype for job in early):
        of_one = [job for job in early if job.dtype == dtype]
        reporter = Reporter(of_one[0].subject, of_one[0].check, dtype)
        try:
            cases, seconds = share
            together = (cases, None if seconds is None else len(of_one) * seconds)
            every = {job: examination(job, together, seed, stops=stops) for job in of_one}
            found = {job: one for job, one in every.items() if isinstance(one, Examination)}
            for one in found.values():
                one.runner.on_words = reporter.words if of_one[0].heard else None
            try_first_cases({job.check: one for job, one in found.items()}, reporter.first_cases)
            _begun.update(found)
        except Exception:
            _begun[of_one[0]] = own_failure(of_one[0])


def examination(
    job: Job,
    share: tuple[int, float | None],
    seed: int,
    *,
    first: int = 0,
    reported: frozenset[FailureKey] = frozenset(),
    stops: bool = False,
) -> Examination | Line:
    """Return what a job is to run, or a line that says why nothing is; see `run_job`."""
    line = Line(
        subject=job.subject,
        check=job.check,
        dtype=job.dtype,
        backend=job.backend or "-",
        variance="",
        path=job.path,
    )
    import torch

    torch.set_num_threads(1)  # workers share the cores; more threads only fight over them
    if job.missing:
        line.skipped = job.missing
        return line
    subject = load_subject(job.path, job.subject)
    place, missing = _placed(subject, job.backend)
    line.backend = place or "-"
    if place is None:
        line.skipped = missing
        return line
    runner = _runner(place, job.multiprocessors)
    return Examination(
        subject=with_read_claim(subject, runner, job.dtype),
        check_name=job.check,
        dtype=job.dtype,
        first_dtype=job.first_dtype,
        runner=runner,
        budget=Budget(cases=share[0], until=_end(share)),
        seed=seed,
        first=first,
        reported=reported,
        stops=stops,
        on_finding=Reporter(job.subject, job.check, job.dtype).finding,
    )


def _end(share: tuple[int, float | None]) -> float | None:
    """Return the moment at which the time of a job that begins now is over, if it has one."""
    return None if share[1] is None else time.monotonic() + share[1]


def _runner(place: str, multiprocessors: int) -> Runner:
    """Return the runner of this process for a backend, which plays a device of so many multiprocessors."""
    key = place, multiprocessors
    if key not in _runners:
        _runners[key] = Runner(place, options=played(place, multiprocessors))
        atexit.register(close_runners)
    return _runners[key]


def played(place: str, multiprocessors: int) -> dict[str, object]:
    """Return a backend's options for so many multiprocessors; 0, or a device of its own: as it is."""
    return {"multiprocessors": multiprocessors} if multiprocessors and can(place, Power.VARIES) else {}


def close_runners() -> None:
    """End the children of this process."""
    while _runners:
        _, runner = _runners.popitem()
        runner.close()


def default_workers() -> int:
    """Return how many workers suit this machine."""
    return max(1, min(os.cpu_count() or 1, 8))
