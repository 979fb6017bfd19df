"""How far a campaign has come with one job: batches in generations, and what they have taught."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from verifier.audit.fuzzing.case_batch import BatchResult, CaseBatch, Place
from verifier.audit.fuzzing.steered_search import Guide, Kept
from verifier.audit.rules import failure_key
from verifier.audit.run_audit import Job
from verifier.audit.tally import merged
from verifier.cases.recipe import Recipe
from verifier.records.verdict import FailureKey, Finding, Line

UNIT_CASES = 40
"""Cases of one batch: enough to climb some steps, few enough that a worker that dies loses little."""
MOST_PARENTS = 24
"""Recipes near which a batch draws, at most, of each kind: with the best scores, and with features."""
NEWEST = 2
"""Recipes with features from which most cases are drawn."""
IDLE = 2
"""Generations without a single case after which a job ends: there is nothing left to try."""
MOST_SEED = 2**32
SEEDS_A_UNIT = 1009
"""From the seed of one batch to that of the next: within one, each draw takes the next number."""

Mark = tuple[FailureKey, bool]
"""What makes two findings of one job the same one: their key, and whether they are a known defect."""


@dataclass(kw_only=True)
class JobProgress:
    """One job of a campaign.

    In a generation all batches draw with the same guide, one in each lane, and the next one begins when all
    have ended: what is drawn follows from the seed, whichever process runs which batch, and when.

    generations: how many there are, None for as many as there is time. replayed: recipes of the corpus that
    the first one begins with. line: the sum of all that has ended.
    """

    number: int
    job: Job
    seed: int
    lanes: int
    generations: int | None
    cases: int = UNIT_CASES
    steers: bool = True
    database: str = ""
    brief: bool | None = None
    replayed: Sequence[Kept] = ()
    line: Line | None = None
    errors: list[str] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    best: dict[str, float] = field(default_factory=dict)
    marks: set[Mark] = field(default_factory=set)
    ran: int = 0
    generation: int = 0
    _handed: set[int] = field(default_factory=set)
    _ended: dict[int, BatchResult] = field(default_factory=dict)
    _idle: int = 0
    _over: bool = False

    @property
    def over(self) -> bool:
        """Whether nothing of it is left to be run."""
        return self._over or (self.generations is not None and self.generation >= self.generations)

    def ready(self) -> Iterator[CaseBatch]:
        """Yield the batches that may begin now; `hand_out` says which of them does."""
        if not self.over:
            guides = self._guides() if len(self._handed) < self.lanes else []
            for lane, guide in enumerate(guides):
                if lane not in self._handed:
                    yield self._batch(lane, guide)

    def hand_out(self, place: Place) -> None:
        """Note that a batch has begun."""
        self._handed.add(place[2])

    def take(self, place: Place, result: BatchResult) -> bool:
        """Take what came of a batch; return whether it is new: a batch that ran twice counts once."""
        _, generation, lane = place
        if generation != self.generation or lane in self._ended or self.over:
            return False
        self._handed.add(lane)
        self._ended[lane] = result
        if len(self._ended) == self.lanes:
            self._conclude()
        return True

    def fresh(self, findings: Iterable[Finding]) -> list[Finding]:
        """Return findings that are not of a kind that was found before, in this generation or earlier."""
        ended = (r.line for r in self._ended.values() if r.line is not None)
        seen = self.marks | {mark(f) for line in ended for f in line.findings}
        return [f for f in findings if mark(f) not in seen]

    @property
    def lines(self) -> list[Line]:
        """The sum of all generations that have ended, and the lines of the one that has not."""
        ended = [r.line for _, r in sorted(self._ended.items()) if r.line is not None]
        return [*([] if self.line is None else [self.line]), *ended]

    @property
    def errors_of_now(self) -> list[str]:
        """How the verifier itself failed in the generation that has not ended."""
        return [r.error for _, r in sorted(self._ended.items()) if r.error]

    @property
    def cases_run(self) -> int:
        """Cases of all batches that have ended."""
        return self.ran + sum(result.cases for result in self._ended.values())

    def sum(self) -> Line | None:
        """Return the one line of all that was run, each kind of finding once."""
        lines = self.lines
        if not lines:
            return None
        total, seen = replace(lines[0]), {mark(f) for f in lines[0].findings}
        for line in lines[1:]:
            total = merged(total, _with_new(line, seen))
        return total

    # -- inside --------------------------------------------------------------------------------

    def _conclude(self) -> None:
        """Learn from a generation, lane by lane, and go on to the next."""
        self.line = self.sum()
        ran = 0
        for _, result in sorted(self._ended.items()):
            ran += result.cases
            if result.error and result.error not in self.errors:
                self.errors.append(result.error)
            if result.line is not None:
                self.marks |= {mark(f) for f in result.line.findings}
            for one in result.kept:
                self._learn(one)
        self._idle = 0 if ran else self._idle + 1
        skipped = self.line is not None and bool(self.line.skipped) and not self.line.counts
        self._over = skipped or self.line is None or self._idle >= IDLE
        self.ran += ran
        self.generation += 1
        self._handed.clear()
        self._ended.clear()

    def _learn(self, one: Kept) -> None:
        """Keep what is new to the whole job: another lane may have come to the same."""
        new = [name for name in one.features if name not in self.known]
        better = [(what, score) for what, score in one.scores if score > self.best.get(what, 0.0)]
        if new or better:
            self.kept.append(replace(one, features=tuple(new), scores=tuple(better)))
            self.known.update(new)
            self.best.update(better)

    def _guides(self) -> list[Guide]:
        first = self.generation == 0
        name = f"{self.job.subject} {self.job.check} {self.job.dtype}"
        common = Guide(
            parents=self._parents(),
            known=frozenset(self.known),
            best=dict(self.best),
            steers=self.steers,
            database=self.database,
            job=name,
        )
        recipes = [one.recipe for one in self.replayed] if first else []
        return [
            replace(common, replayed=tuple(recipes[lane :: self.lanes]), listing=lane == 0)
            for lane in range(self.lanes)
        ]

    def _parents(self) -> tuple[Recipe, ...]:
        """Return the recipes near which cases are drawn; what is named twice is drawn from twice as often.

        Half of the draws go to the best scores, and half to features: of these, most to the newest, since
        what they reached may lead on.
        """
        if not self.steers:
            return ()
        best: dict[str, Recipe] = {}
        for one in self.kept:  # the last one is the best
            best.update({what: one.recipe for what, _ in one.scores})
        highest = list(best.values())[-MOST_PARENTS:]
        features = [one.recipe for one in self.kept if one.features][-MOST_PARENTS:]
        newest = features[-NEWEST:]
        leading = features + max(1, len(features)) * newest
        return tuple(highest + leading * max(1, len(highest) // max(1, len(leading))))

    def _batch(self, lane: int, guide: Guide) -> CaseBatch:
        listed = self.line.listed if self.line is not None else 0
        begun = self.generation > 0 or lane > 0
        return CaseBatch(
            place=(self.number, self.generation, lane),
            job=self.job,
            seed=(self.seed + SEEDS_A_UNIT * (self.lanes * self.generation + lane)) % MOST_SEED,
            cases=self.cases + len(guide.replayed),
            guide=guide,
            first=max(listed, 1) if begun else 0,
            reported=frozenset(key for key, expected in self.marks if not expected),
            brief=self.brief,
        )


def mark(finding: Finding) -> Mark:
    """Return what makes a finding the same as others of its job."""
    return failure_key(finding.outcome), finding.expected


def _with_new(line: Line, seen: set[Mark]) -> Line:
    """Return a line with those findings that nothing before has; a known defect hides no other failure."""
    new = [f for f in line.findings if mark(f) not in seen]
    seen.update(mark(f) for f in new)
    return replace(line, findings=new)
