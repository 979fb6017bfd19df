"""A search that climbs: towards code that nothing has reached, and errors that come near their bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hypothesis import Phase, settings, target
from hypothesis.strategies import SearchStrategy

from verifier.audit.fuzzing.example_database import database_of
from verifier.audit.fuzzing.features import features
from verifier.audit.search import Search
from verifier.cases.nearby import recipes_nearby
from verifier.cases.plan import Plan
from verifier.cases.recipe import Recipe
from verifier.records.reach import CompiledForm, Reach
from verifier.records.verdict import Outcome

BETTER = 1.2
"""How many times the best error/bound another must be to be kept: a corpus of few cases is replayed soon."""
LEAST_SCORE = 1e-6
"""Of error/bound: below, no step leads to a failure."""
NEAR_SHARE = 0.75
"""Share of the drawn cases that lie near what the corpus keeps; the others are drawn from all there are."""
LIST_SHARE = 0.2
"""Share of a batch's cases that the fixed list has at most, once there is something to climb from."""
DRAWS_A_CASE = 2
"""Examples that Hypothesis is asked for, for each case that is wanted: it climbs when half are drawn."""
OFTEN = 3
"""How much more often recipes are drawn from that reached new features just now."""
REACH, ERROR = "reach", "error"
"""What Hypothesis climbs by: new features of a case, and its error/bound beside the best of its like."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A recipe that reached something new: features that no case before had, or a better error/bound.

    scores: error/bound by what it is of, those that were better.
    """

    recipe: Recipe
    features: tuple[str, ...] = ()
    scores: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Guide:
    """What a search is to know of those before it.

    replayed: recipes that come before all others. parents: those near which cases are drawn. known: features
    that were reached; best: error/bound by what it is of: of each result, for each size of rows. steers:
    whether all this counts; without, cases are drawn as an audit draws them. listing: whether the fixed list
    goes on. database: where Hypothesis keeps examples, see `database_of`; job: the part of it that is meant.
    """

    replayed: tuple[Recipe, ...] = ()
    parents: tuple[Recipe, ...] = ()
    known: frozenset[str] = frozenset()
    best: Mapping[str, float] = field(default_factory=dict)
    steers: bool = True
    listing: bool = True
    database: str = ""
    job: str = ""


@dataclass(kw_only=True)
class SteeredSearch(Search):
    """A search with a guide; kept: what reached something new, in order. ran: cases that were judged."""

    guide: Guide = field(default_factory=Guide)
    kept: list[Kept] = field(default_factory=list)
    ran: int = 0
    _known: set[str] = field(default_factory=set)
    _best: dict[str, float] = field(default_factory=dict)
    _forms: dict[str, CompiledForm] = field(default_factory=dict)
    _heights: dict[str, dict[str, float]] = field(default_factory=dict)
    _draws: int = 0

    def run(self, plan: Plan) -> None:
        """Replay what the guide names, then search on."""
        self._known, self._best = set(self.guide.known), dict(self.guide.best)
        inside = self._inside_of(plan)
        for recipe in self.guide.replayed:
            if self.budget.spent(0) or self._found_enough():
                break
            if self._wanted_inside(inside, recipe):
                self._run(inside, recipe)
        super().run(plan)

    def _list_ends(self, count: int) -> bool:
        enough = bool(self.guide.parents) and self.guide.steers and count >= LIST_SHARE * self.budget.cases
        return not self.guide.listing or enough or super()._list_ends(count)

    def _run(self, plan: Plan, recipe: Recipe, *, collect: object = None) -> list[Outcome]:
        """Run one recipe as any search does; keep it if it reached something new."""
        before = self.trial.reach
        outcomes = super()._run(plan, recipe, collect=collect)  # type: ignore[arg-type]
        self.ran += 1
        case = self._built(plan, recipe)
        if case is not None and not self.trial.is_outside(case):
            self._note(recipe, case.columns, self.trial.reach.without(before), outcomes)
        return outcomes

    def _note(self, recipe: Recipe, columns: int, reached: Reach, outcomes: Iterable[Outcome]) -> None:
        self._forms.update({form.digest: form for form in reached.forms})
        new = features(reached, self._forms) - self._known
        scores = dict(_scores(outcomes, columns))
        better = {
            name: score
            for name, score in scores.items()
            if score > BETTER * self._best.get(name, LEAST_SCORE)
        }
        self._known |= new
        self._best |= better
        if new or better:
            kept = Kept(recipe=recipe, features=tuple(sorted(new)), scores=tuple(sorted(better.items())))
            self.kept.append(kept)
        self._heights[repr(recipe)] = {REACH: float(len(new))}
        if scores:  # a bound that is sharp in short rows is no summit to those that climb in long ones
            best = ((score, self.guide.best.get(name, LEAST_SCORE)) for name, score in scores.items())
            higher = max(math.log2(max(score, LEAST_SCORE) / known) for score, known in best)
            self._heights[repr(recipe)][ERROR] = higher

    # -- what Hypothesis draws -----------------------------------------------------------------

    def _drawing(self, plan: Plan, examples: int) -> tuple[SearchStrategy[Recipe], settings]:
        """Draw from all recipes and near those that are known, in turn; both climb."""
        strategy, quiet = super()._drawing(plan, examples)
        if not self.guide.steers:
            return strategy, quiet
        self._draws += 1
        left = max(1, self.budget.cases - self.ran)
        phases = (*quiet.phases, Phase.target)
        if (parents := self._parents) and self._draws % 2 == 1:
            trial = self.trial
            near = recipes_nearby(parents, trial.op, trial.subject, trial.dtype, plan)
            wanted = min(examples, DRAWS_A_CASE * math.ceil(NEAR_SHARE * left))
            return near, settings(quiet, max_examples=wanted, phases=phases)
        quiet = settings(quiet, max_examples=min(examples, DRAWS_A_CASE * left), phases=phases)
        if not self.guide.database:
            return strategy, quiet
        kept_in = database_of(self.guide.database, self.guide.job)
        return strategy, settings(quiet, phases=(Phase.reuse, *phases), database=kept_in, derandomize=False)

    def _draw(self, plan: Plan, count: int, new_seed: int) -> tuple[int, bool]:
        """Draw as any search does; where all near recipes are known, from all there are."""
        tried, failed = super()._draw(plan, count, new_seed)
        if tried or failed or self._draws % 2 == 0:
            return tried, failed
        return super()._draw(plan, count, new_seed)

    @property
    def _parents(self) -> tuple[Recipe, ...]:
        """Recipes near which cases are drawn, those with new features more often."""
        own = [kept.recipe for kept in self.kept]
        new = [kept.recipe for kept in self.kept if kept.features]
        return (*self.guide.parents, *own, *(OFTEN * new))

    def _aim(self, recipe: Recipe) -> None:
        """Tell Hypothesis by how much a case failed to fail, and whether it reached anything new."""
        if self.guide.steers:
            for label, height in self._heights.get(repr(recipe), {}).items():
                target(height, label=label)


def _scores(outcomes: Iterable[Outcome], columns: int) -> Iterator[tuple[str, float]]:
    """Yield error/bound of each result of which it is known, named by the result and the size of rows."""
    for outcome in outcomes:
        worst = outcome.worst
        if worst is not None and outcome.decided and not math.isnan(worst.utilisation):
            size = f"at 2^{max(columns.bit_length() - 1, 0)} columns and more"
            yield f"{outcome.output or 'result'} {size}", min(worst.utilisation, 1e300)
