"""A batch of cases of one job, with the same result in whichever process it runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from verifier.audit.examination import Examination
from verifier.audit.fuzzing.devices import claim_device
from verifier.audit.fuzzing.steered_search import Guide, Kept, SteeredSearch
from verifier.audit.news import Reporter
from verifier.audit.run_audit import Job, examination, own_failure
from verifier.execution.backends import backend
from verifier.records.verdict import FailureKey, Line

Place = tuple[int, int, int]
"""What a batch is in its campaign: the number of the job, of its generation and of its lane."""


@dataclass(frozen=True, kw_only=True)
class CaseBatch:
    """What a process is to run: cases of a job from a seed, with what its guide knows.

    seconds: after which no further case is begun. first, reported: see `Examination`. brief: whether shapes
    are few, see there.
    """

    place: Place
    job: Job
    seed: int
    cases: int
    guide: Guide
    seconds: float | None = None
    first: int = 0
    reported: frozenset[FailureKey] = frozenset()
    brief: bool | None = None


@dataclass(frozen=True, kw_only=True)
class BatchResult:
    """What came of a batch: a line, or in words how the verifier itself failed.

    kept: what reached anything new. cases: those that were judged.
    """

    line: Line | None = None
    error: str = ""
    kept: tuple[Kept, ...] = ()
    cases: int = 0


def run_batch(batch: CaseBatch) -> BatchResult:
    """Run a batch in this process; an error of our own comes back as text.

    The subject runs in a fresh child: what earlier batches of this process have reached counts for nothing,
    so that the result is that of every other process.
    """
    try:
        return _run(batch)
    except Exception:
        return BatchResult(error=own_failure(batch.job))


def _run(batch: CaseBatch) -> BatchResult:
    job = batch.job
    if job.backend is not None and backend(job.backend).shared_device:
        claim_device()
    begun = examination(
        job, (batch.cases, batch.seconds), batch.seed, first=batch.first, reported=batch.reported
    )
    if not isinstance(begun, Examination):
        return BatchResult(line=begun)
    begun.runner.renew()
    made: list[SteeredSearch] = []
    begun.searches = partial(_searched, batch.guide, made)
    begun.brief = batch.brief
    reporter = Reporter(job.subject, job.check, job.dtype)
    reporter.begin()
    begun.on_case = reporter.case
    line = begun.run()
    if not batch.guide.listing:
        line.listed = 0
    kept = tuple(one for search in made for one in search.kept)
    return BatchResult(line=line, kept=kept, cases=sum(search.ran for search in made))


def _searched(guide: Guide, made: list[SteeredSearch], **given: object) -> SteeredSearch:
    made.append(SteeredSearch(guide=guide, **given))  # type: ignore[arg-type]
    return made[-1]
