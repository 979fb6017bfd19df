"""Searches for cases that fail: a fixed list, a few cases outside the domain, and what Hypothesis draws."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from verifier.audit import causes, rules, shrink, tally
from verifier.audit.budget import FINDINGS_PER_LINE, LEAST_STEERED, Budget
from verifier.audit.outside_domain import plan_outside
from verifier.audit.request import BUDGETS
from verifier.audit.trial import Failure, Trial
from verifier.cases.drawn import recipes
from verifier.cases.fixed_list import covering, to_be_tried, tried, unsaid_eps
from verifier.cases.plan import Plan
from verifier.cases.recipe import Recipe, build
from verifier.cases.steering import Steering, at_numbers, near_the_largest, steered
from verifier.records.case import Case
from verifier.records.subject import KnownDefect
from verifier.records.verdict import BAD, FailureKey, Finding, Line, Outcome, Verdict
from verifier.subjects.source_numbers import further_numbers, source_numbers

COVERING_SHARE = 0.6
"""Share of a budget that the fixed list gets, unless it ends before; Hypothesis draws the rest."""
MUST_SHARE = 0.8
"""The same while something is left that must be tried for a PASS."""
OUTSIDE_SHARE = 0.1
"""Cases outside the declared domain for each one inside; they come on top of the budget."""
PATIENCE = 800
"""Recipes of the fixed list in a row that may be unwanted (known defects, numbers outside the domain)."""
PATIENCE_PER_CASE = 40
"""The same for each case of the budget: a search for a few cases does not make hundreds that nobody runs."""
MOST_DRAWS = 4
"""Examples that Hypothesis is asked for besides each case that is wanted: some are not, or known already."""
DRAWS_AT_ONCE = 500
"""Examples that Hypothesis is asked for at a time, at most."""
AHEAD, AHEAD_PATIENCE = 12, 50
"""Recipes of the fixed list among which cases are judged ahead, and how many in a row may be unwanted."""
DEATHS_PER_LINE = 3
"""Deaths of the subject's process after which a search ends: nothing more is to be learned from others."""
TIMEOUTS_PER_LINE = 2
"""Cases without an answer after which a search ends: each costs a whole limit, the first of a subject two."""
CRASHES_PER_LINE = 12
"""Cases after which a search ends if each of them was an error: the kernel does not run at all."""


@dataclass(frozen=True, kw_only=True)
class Ahead:
    """What came of a case that was judged before all others; verdict: None where nothing was decided."""

    verdict: Verdict | None
    failure: Failure | None


@dataclass(kw_only=True)
class Search:
    """One search by a trial, whose cases and findings go to a line.

    known: defects whose cases are left out. only: the cases that are taken, if not all. first: how many
    recipes of the fixed list an earlier search has tried already. steering: shapes that come before all
    others, unless there was an earlier search. seen: keys of failures that are not
    reported again. excluded: reasons of the known defects that took cases from the search, in order.
    stops: whether it ends at the first finding that is not a known one. shrinks: whether a failure is made
    small and explained before it is reported.
    """

    trial: Trial
    line: Line
    budget: Budget
    seed: int = 0
    known: list[KnownDefect] = field(default_factory=list)
    only: Callable[[Case], bool] | None = None
    first: int = 0
    steering: Steering = field(default_factory=Steering)
    seen: set[FailureKey] = field(default_factory=set)
    on_finding: Callable[[Finding], None] | None = None
    on_case: Callable[[], None] | None = None
    excluded: dict[str, None] = field(default_factory=dict)
    stops: bool = False
    shrinks: bool = True
    _deaths: int = 0
    _inside: int = 0
    _steered: int = 0
    _unsaid: int = 0
    _gradients: bool = False
    _list_until: float | None = None
    _drawn: set[str] = field(default_factory=set)
    _last: tuple[Recipe, Case | None] | None = None
    _kept: dict[Recipe, tuple[list[Outcome], str]] = field(default_factory=dict)

    def judge_ahead(self, plan: Plan, fits: Callable[[Recipe, Case], bool]) -> Ahead | None:
        """Judge the first fitting case with which the fixed list begins, None where there is none.

        It is counted when the list comes to it, from what is kept here: each case is judged once.
        """
        trial, inside = self.trial, self._inside_of(plan)

        def wanted(recipe: Recipe) -> bool:  # as the list, but for counting what is passed over
            case = self._built(inside, recipe)
            passed_over = case is not None and (
                (self.only is not None and not self.only(case))
                or any(d.where is None or d.where(case) for d in self.known)
            )
            return case is not None and not trial.is_outside(case) and not passed_over

        share = max(1, round(self.budget.cases * COVERING_SHARE))
        listed = covering(trial.subject, inside, accept=wanted, patience=min(AHEAD_PATIENCE, self._patience))
        for recipe in islice(listed, min(AHEAD, share)) if not inside.empty else ():
            case = self._built(inside, recipe)
            if case is None or recipe in self._kept or not fits(recipe, case):
                continue
            outcomes, detail = self._kept[recipe] = trial.judge(case)
            judged = rules.deciding([trial.as_counted(case, o) for o in outcomes])
            bad = next((o for o in outcomes if trial.is_finding(case, o)), None)
            return Ahead(
                verdict=rules.summed(o.verdict for o in judged) if judged else None,
                failure=None if bad is None else Failure(case=case, outcome=bad, detail=detail),
            )
        return None

    def report(self, failure: Failure) -> None:
        """Report a failure of a case that was judged ahead, unless its like was."""
        if failure.key not in self.seen:
            self._report(failure)

    def _inside_of(self, plan: Plan) -> Plan:
        subject = self.trial.subject
        return plan.for_inputs_of(self.trial.dtype, subject).within(subject.domain)

    def run(self, plan: Plan) -> None:
        """Run the fixed list inside the domain, a few cases outside, and what Hypothesis draws inside."""
        subject, line, started = self.trial.subject, self.line, time.monotonic()
        self._gradients = plan.gradients
        if self.budget.until is not None:
            self._list_until = started + COVERING_SHARE * (self.budget.until - started)
        inside = self._inside_of(plan)
        plan = plan.for_inputs_of(self.trial.dtype, subject)
        outside = self._outside(plan, self._patience // 10)
        line.untried = [*to_be_tried(subject, inside), *self.trial.check.must_be_tried(subject)]
        line.listed = self.first
        if not self.first:
            self._steer(inside)
        count, (words, unsaid) = self._steered, self._unsaid_eps(inside)
        self._unsaid = len(unsaid)
        if not inside.empty:
            for recipe in islice(self._listed(inside), self.first, None):
                if self._list_ends(count):
                    break
                self._run(inside, recipe)
                line.listed, count = line.listed + 1, count + 1
                self._venture(outside, count)
        line.untried += words  # not before: the list would have a larger share for what is none of it
        for recipe in unsaid if not self.budget.spent(count) and not self._found_enough() else ():
            self._run(inside, recipe)
        self._hypothesis(inside, count + self._unsaid, lambda done: self._venture(outside, done))
        if subject.domain is not None and not (self._inside or line.left_out):
            most = f"{plan.max_rows} rows, {plan.max_columns} columns and {plan.max_elements} elements"
            tells = f", which are of at most {most}" if inside.empty else ""
            if not self.budget.spent(0):
                line.notes.append(f"none of the cases that are tried lies inside the declared domain{tells}")
        if not line.counts:  # what is looked for lies outside altogether
            outside = self._outside(plan, self._patience)
            for done in range(1, min(self.budget.cases, BUDGETS["standard"]) + 1):
                self._venture(outside, done)
        if self.stops or self.budget.until is not None:  # the list may have ended before it came to them
            for recipe in list(self._kept):
                self._run(inside, recipe)

    def hopeless(self) -> str:
        """Return why more cases would tell nothing more, or nothing."""
        counts = self.line.counts
        if self._deaths >= DEATHS_PER_LINE or counts[Verdict.TIMEOUT] >= TIMEOUTS_PER_LINE:
            return "the subject's process died or had to be stopped"
        crashes = counts[Verdict.CRASH]
        if crashes >= CRASHES_PER_LINE and crashes + counts[Verdict.SKIPPED] == counts.total():
            return f"each of {crashes} cases ended in an error"
        return ""

    # -- which cases ---------------------------------------------------------------------------

    @property
    def _patience(self) -> int:
        """How many recipes in a row may be unwanted before the fixed list ends."""
        return min(PATIENCE, PATIENCE_PER_CASE * self.budget.cases)

    @cached_property
    def _closed_by(self) -> frozenset[str] | None:
        """The reasons for which one case or another is left out if all are, None if some may be run."""
        everywhere = next((number for number, d in enumerate(self.known) if d.where is None), None)
        return None if everywhere is None else frozenset(d.reason for d in self.known[: everywhere + 1])

    def _list_ends(self, count: int) -> bool:
        """Return whether the fixed list has had its share; what must be tried may ask for a larger one."""
        share = MUST_SHARE if self.line.untried else COVERING_SHARE
        late = self._list_until is not None and time.monotonic() >= self._list_until
        enough = count - self._steered >= max(1, round(self.budget.cases * share))
        return enough or late or self.budget.spent(count + self._unsaid) or self._found_enough()

    def _steer(self, plan: Plan) -> None:
        """Run numbers of the sources, shapes that come first, large numbers, then what code compares with.

        If they lie inside and time allows.
        """
        subject, dtype = self.trial.subject, self.trial.dtype
        planted = plan.literals and self.budget.cases >= LEAST_STEERED and subject.language != "torch"
        large = plan.literals and self.budget.cases >= BUDGETS["quick"]  # of fewer each has its place

        def in_turn() -> Iterator[Iterable[Recipe]]:
            if planted:
                yield at_numbers(subject, plan, dtype, source_numbers(subject))
            yield from steered(subject, plan, self.steering.shapes)
            if large:
                yield from near_the_largest(subject, plan, dtype, self.steering.shapes)
            if planted:  # known now that kernels were launched
                yield at_numbers(subject, plan, dtype, further_numbers(subject, self.trial.reach.compared))

        for recipes_of in in_turn():
            if self.budget.spent(self._steered) or self._found_enough():
                return
            for recipe in recipes_of:
                if self._wanted_inside(plan, recipe):
                    self._steered += 1
                    if not any(o.verdict is Verdict.REFUSED for o in self._run(plan, recipe)):
                        break

    def _unsaid_eps(self, plan: Plan) -> tuple[list[str], list[Recipe]]:
        """Return a case whose call says no number as eps, in words, and the recipe that has a place then."""
        words, recipes = unsaid_eps(self.trial.subject, plan, self.trial.dtype)
        kept = () if self.budget.cases < LEAST_STEERED else recipes
        return words, list(islice((r for r in kept if self._wanted_inside(plan, r)), 1))

    def _listed(self, plan: Plan) -> Iterator[Recipe]:
        """Yield the recipes of the fixed list whose cases are to be run."""
        return covering(
            self.trial.subject, plan, accept=lambda r: self._wanted_inside(plan, r), patience=self._patience
        )

    def _wanted_inside(self, plan: Plan, recipe: Recipe) -> bool:
        case = self._built(plan, recipe)
        return case is not None and not self.trial.is_outside(case) and not self._passed_over(case)

    def _outside(self, plan: Plan, patience: int) -> Iterator[Recipe]:
        """Yield recipes outside the domain; none where none is declared."""

        def wanted(recipe: Recipe) -> bool:
            case = self._built(plan, recipe)
            return case is not None and self.trial.is_outside(case) and not self._passed_over(case)

        subject = self.trial.subject
        beyond = plan_outside(subject, self.trial.dtype, plan)
        if beyond is None:
            return iter(())
        every = covering(subject.differing(domain=None), beyond, accept=wanted, patience=patience)
        return islice(every, round(self.first * OUTSIDE_SHARE), None)

    def _venture(self, outside: Iterator[Recipe], done: int) -> None:
        """Run a case outside the domain where so many inside call for one more."""
        wanted = self.line.outside < OUTSIDE_SHARE * done
        if wanted and not self.budget.spent(0) and not self._found_enough():
            for recipe in islice(outside, 1):
                self._run(Plan(gradients=self._gradients), recipe)

    def _built(self, plan: Plan, recipe: Recipe) -> Case | None:
        """Return the case of a recipe, or None if it has none or none can be run; the last one is kept."""
        if self._closed_by is not None and self._closed_by <= self.excluded.keys():
            return None
        if self._last is None or self._last[0] != recipe:
            trial = self.trial
            case = build(trial.op, trial.subject, trial.dtype, recipe, gradients=plan.gradients)
            self._last = (recipe, case)
        return self._last[1]

    def _left_out(self, case: Case) -> bool:
        """Return whether the search passes this case over, because of a known defect or a restriction."""
        if self.only is not None and not self.only(case):
            return True
        why = next((d.reason for d in self.known if d.where is None or d.where(case)), None)
        if why is not None:
            self.excluded[why] = None
        return why is not None

    def _passed_over(self, case: Case) -> bool:
        """Return whether the search leaves a case out, and count it."""
        left = self._left_out(case)
        self.line.left_out += left
        return left

    def _found_enough(self) -> bool:
        """Return whether to end: there are as many findings as asked for, or the subject keeps dying."""
        if self.hopeless() or (self.stops and rules.unexpected(self.line.findings)):
            return True
        wanted = self.budget.findings
        return wanted < FINDINGS_PER_LINE and len(self.line.findings) >= wanted

    # -- one case ------------------------------------------------------------------------------

    def _run(self, plan: Plan, recipe: Recipe, *, collect: Shrinking | None = None) -> list[Outcome]:
        """Run one recipe; report a new kind of failure, or leave it to Hypothesis to shrink."""
        trial, line = self.trial, self.line
        case = self._built(plan, recipe)
        assert case is not None
        kept = recipe in self._kept
        outcomes, detail = self._kept.pop(recipe) if kept else trial.judge(case)
        self._deaths += any(o.died for o in outcomes)
        if self.on_case:
            self.on_case()
        outside = trial.is_outside(case)
        self._inside += not outside
        counted = [trial.as_counted(case, o) for o in outcomes]
        verdict = tally.add(line, case, counted, outside=outside, detail=detail)
        # What is only measured was tried as well.
        shown = tried(recipe, case, plan)
        if not outside and verdict in {None, Verdict.PASS, *BAD}:
            done = shown.union(*(o.tried for o in outcomes))
            line.untried = [name for name in line.untried if name not in done]
        elif not outside and any(o.verdict is Verdict.REFUSED for o in outcomes):
            line.refused += [name for name in line.untried if name in shown and name not in line.refused]
        for outcome in outcomes:
            if not trial.is_finding(case, outcome) or rules.failure_key(outcome) in self.seen:
                continue
            failure = Failure(case=case, outcome=outcome, detail=detail)
            if collect is not None:
                collect.found(recipe, failure)
                break
            self._report(failure)
        return outcomes

    def _report(self, failure: Failure) -> None:
        """Shrink and explain a new kind of failure and add it to the line, if it has room for findings."""
        self.seen.add(failure.key)
        if len(self.line.findings) >= self.budget.findings:
            return
        made = self.trial.finding(failure)
        if self.shrinks:
            smallest = shrink.shrunk(self.trial, failure, self._left_out)
            made = causes.explained(self.trial, self.trial.finding(smallest))
        self.line.findings.append(made)
        if self.on_finding:
            self.on_finding(made)

    # -- what Hypothesis draws -----------------------------------------------------------------

    def _hypothesis(self, plan: Plan, count: int, venture: Callable[[int], None]) -> None:
        """Let Hypothesis draw the rest, with another seed after each failure."""
        new_seed = self.seed
        while not plan.empty and not self.budget.spent(count) and not self._found_enough():
            tried_now, failed = self._draw(plan, count, new_seed)
            if tried_now == 0 or (failed and len(self.line.findings) >= self.budget.findings):
                return
            count, new_seed = count + tried_now, new_seed + 1
            venture(count)

    def _draw(self, plan: Plan, count: int, new_seed: int) -> tuple[int, bool]:
        """Run Hypothesis once; it shrinks the descriptor of the first failure it meets.

        Returns how many cases were run, and whether one failed.
        """
        calls = shrink.REDUCTION_CALLS if self.shrinks else 0
        state = Shrinking(calls=calls, until=self.budget.until)

        def test(recipe: Recipe) -> None:
            ended = self.budget.spent(count + state.tried) or self._found_enough()
            if state.failure is None and ended:
                raise _Enough
            if state.failure is None and repr(recipe) not in self._drawn:
                self._drawn.add(repr(recipe))
                if self._wanted_inside(plan, recipe):
                    state.tried += 1
                    self._run(plan, recipe, collect=state)
            elif state.failure is not None:
                state.retry(recipe, lambda r, key: self._fails_alike(plan, r, key))
            self._aim(recipe)
            if repr(recipe) in state.failing:
                raise AssertionError("a check failed")

        examples = min(MOST_DRAWS * (self.budget.cases - count + self._unsaid), DRAWS_AT_ONCE)
        strategy, quiet = self._drawing(plan, examples)
        try:
            with contextlib.suppress(_Enough):
                seed(new_seed)(quiet(given(strategy)(test)))()
        except AssertionError:
            assert state.failure is not None
            self._report(state.failure)
        return state.tried, state.failure is not None

    def _drawing(self, plan: Plan, examples: int) -> tuple[SearchStrategy[Recipe], settings]:
        """Return what Hypothesis draws from next, and how."""
        return recipes(self.trial.op, self.trial.subject, self.trial.dtype, plan), settings(
            max_examples=examples,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink) if self.shrinks else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            print_blob=False,
        )

    def _aim(self, recipe: Recipe) -> None:
        """Tell Hypothesis how near a recipe came to what is searched for: nothing is told here."""

    def _fails_alike(self, plan: Plan, recipe: Recipe, key: FailureKey) -> Failure | None:
        """Return the failure of this key that a recipe shows inside the domain, if it does."""
        case = self._built(plan, recipe)
        if case is None or self.trial.is_outside(case) or self._left_out(case):
            return None
        return self.trial.fails_alike(case, key)


class _Enough(BaseException):
    """Ends a run of Hypothesis whose budget is spent; no Exception, which it would take for a failure."""


@dataclass(kw_only=True)
class Shrinking:
    """What Hypothesis met: the smallest failure that is like the first."""

    calls: int
    until: float | None
    tried: int = 0
    failure: Failure | None = None
    failing: set[str] = field(default_factory=set)
    passing: set[str] = field(default_factory=set)

    def found(self, recipe: Recipe, failure: Failure) -> None:
        """Keep the first failure."""
        self.failure = failure
        self.failing.add(repr(recipe))
        if failure.outcome.died:
            stopped = failure.outcome.verdict is Verdict.TIMEOUT
            self.calls = 0 if stopped else min(self.calls, 2 * DEATHS_PER_LINE)

    def retry(self, recipe: Recipe, fails: Callable[[Recipe, FailureKey], Failure | None]) -> None:
        """Try a smaller recipe, as long as there are calls left; what was tried is remembered."""
        name = repr(recipe)
        late = self.until is not None and time.monotonic() >= self.until
        if name in self.failing or name in self.passing or self.calls <= 0 or late:
            return
        assert self.failure is not None
        self.calls -= 1
        again = fails(recipe, self.failure.key)
        if again is None:
            self.passing.add(name)
        else:
            self.failing.add(name)
            self.failure = again
