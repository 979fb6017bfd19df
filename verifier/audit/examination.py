"""Examines one subject by one check with one dtype at one place: cases in, a `Line` with findings out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from verifier.audit import rules, tally, unpromised_dtypes
from verifier.audit.budget import LEAST_STEERED, Budget
from verifier.audit.claims_at_cases import READING_SECONDS, SHORT_ROWS, ClaimsAtCases
from verifier.audit.declared_trees import compiled_trees, told
from verifier.audit.read_claim import why_unread
from verifier.audit.request import BUDGETS
from verifier.audit.search import Ahead, Search
from verifier.audit.source_names import code_near_subject
from verifier.audit.sweep import Sweep, sweep
from verifier.audit.sweep_of_ways import CalledApart, called_apart
from verifier.audit.trial import Failure, Trial
from verifier.audit.undeclared_dtypes import refused
from verifier.audit.witnesses import replay_witnesses
from verifier.cases.plan import Plan
from verifier.cases.priced_shape import Reaching
from verifier.cases.recipe import Recipe
from verifier.cases.steering import Steering, lengths_alone, steering, wanted_again, without_many
from verifier.checks.support.check import no_ways
from verifier.execution.backends import backend
from verifier.execution.code_against_claim import remarks, summary
from verifier.records.case import Case
from verifier.records.reach import Reach, WithoutRoom, joined
from verifier.records.subject import Subject
from verifier.records.verdict import FailureKey, Finding, Line, Verdict

SHORT_SECONDS = 60.0
"""Of one line: in less time a compiled kernel meets few shapes."""
VARIED_AT_LEAST = {True: (6, 8.0), False: (24, 30.0)}
"""Cases and seconds besides for long shapes tried otherwise, of a search by bounds that is quick, or not."""
NEWS_BESIDES = 11.1
"""Seconds that it has besides for shapes where a kernel runs, or a loop turns again, for the first time.

Estimated ones, of which most are compilations: these take half as long, and nothing in a later audit.
"""
CODE_SHOWN_BY = ("forward_error", "gradient")
"""Checks whose lines say what the compiled code consists of: forward, and forward and backward."""
READING_SHARE = 0.2
"""Of a line's time: what readings of the code at the calls of its cases may take."""
UNCLAIMED = "nothing is claimed, so no bound applies: `norm-verifier describe` proposes variance= or formula="


@dataclass(kw_only=True)
class Examination(Trial):
    """A trial of as many cases as the budget allows.

    first, only, on_finding, on_case, stops, shrinks: see `Search`. ignore_known: search as if no known
    defect were declared. reported: keys of failures that are known and not reported again. searches: makes
    the search. brief: whether shapes are few, because each is compiled anew; None: where the budget is small.
    first_dtype: of those that are asked for, with which alone some checks have shapes that reach launches;
    empty: the first that the subject declares.
    """

    budget: Budget = field(default_factory=Budget)
    seed: int = 0
    ignore_known: bool = False
    only: Callable[[Case], bool] | None = None
    first: int = 0
    reported: frozenset[FailureKey] = frozenset()
    on_finding: Callable[[Finding], None] | None = None
    on_case: Callable[[], None] | None = None
    stops: bool = False
    shrinks: bool = True
    searches: Callable[..., Search] = Search
    brief: bool | None = None
    first_dtype: str = ""
    _seconds: float = field(default=0.0, init=False)

    def run(self) -> Line:
        """Replay the witnesses of known defects, then search; findings come shrunk."""
        started = time.monotonic()
        line, search, plan = self._prepared
        if search is None:
            return line
        search.on_case = self.on_case
        if plan is not None:
            search.run(plan)
            self._measure_dtypes(plan, line)
        self._conclude(line, search)
        line.reach = self.reach
        line.seconds = self._seconds + time.monotonic() - started
        return line

    def try_ahead(self, fits: Callable[[Subject, Recipe, Case], bool]) -> Ahead | None:
        """Judge the first fitting case of the fixed list before the rest is run, None where there is none."""
        started = time.monotonic()
        _, search, plan = self._prepared
        if search is None or plan is None or self.budget.spent(0):
            return None
        made = search.judge_ahead(plan, lambda recipe, case: fits(self.subject, recipe, case))
        self._seconds += time.monotonic() - started
        return made

    def report(self, failure: Failure) -> None:
        """Report the failure of a case that was judged ahead."""
        started = time.monotonic()
        _, search, _ = self._prepared
        if search is not None:
            search.report(failure)
        self._seconds += time.monotonic() - started

    @property
    def has_failed(self) -> bool:
        """Whether a case that was judged ahead, or a witness, is a finding that is not a known one."""
        return "_prepared" in vars(self) and bool(rules.unexpected(self._prepared[0].findings))

    def renew(self, until: float | None) -> None:
        """Let the time for what was begun end at another moment: first cases of other checks took of it."""
        _, search, _ = self._prepared
        self.budget = replace(self.budget, until=until)
        if search is not None:
            search.budget = replace(search.budget, until=until)

    @cached_property
    def _prepared(self) -> tuple[Line, Search | None, Plan | None]:
        """The line with the witnesses of known defects, the search to come, and what it is to try.

        There is no search where nothing is run, and no plan where known defects leave no case to search for.
        """
        line = self._line()
        if reason := self._not_run():
            line.skipped = reason
            return line, None, None
        if not self.ignore_known:
            replay_witnesses(self, line)
            self._tell_findings(line)
        search = self.searches(
            trial=self,
            line=line,
            budget=self.budget,
            seed=self.seed,
            known=[] if self.ignore_known else self.known_defects(),
            only=self.only,
            first=self.first,
            seen=set(self.reported),
            on_finding=self.on_finding,
            stops=self.stops,
            shrinks=self.shrinks,
        )
        everywhere = [d for d in self.known_defects() if d.where is None and d.check == self.check_name]
        if everywhere and not self.ignore_known:
            if not line.findings:
                line.skipped = f"known defect: {everywhere[0].reason} (no witness for {self.dtype} here)"
            return line, search, None
        plan = self.check.plan(self.subject, self.op)
        self.claims = self._readings()
        search.budget = self.budget.taken_by(plan, len(self.subject.extents))
        # Of a check that takes a few cases alone, shapes that come first come besides: the budget has room.
        # So do they where the other cases sweep numbers of rows, and what is tried otherwise, of every check.
        of = search.budget if plan.most is None else self.budget
        search.steering = self._steering(plan, of, line)
        aside = plan.most is not None or plan.for_many is not None
        besides = [s for s in search.steering.shapes if aside or s.variation]
        search.budget = replace(search.budget, cases=search.budget.cases + len(besides))
        return line, search, self._shortened(plan, search.steering)

    def _readings(self) -> ClaimsAtCases | None:
        """Return what reads the code at the calls of cases, of a claim that was read at another shape.

        Only lines that show bounds do: what fails or passes elsewhere rests on the wide ones. So does what a
        later search of the same line adds.
        """
        if self.first or not self.subject.claim.read or self.check_name not in CODE_SHOWN_BY:
            return None
        seconds = READING_SECONDS[self.budget.size]
        if self.budget.until is not None:
            seconds = min(seconds, READING_SHARE * max(0.0, self.budget.until - time.monotonic()))
        return ClaimsAtCases(
            subject=self.subject,
            runner=self.runner,
            seconds=seconds,
            least=SHORT_ROWS[self.budget.size],
            budget=self.budget.words,
        )

    def _tell_findings(self, line: Line) -> None:
        for finding in rules.unexpected(line.findings):
            if self.on_finding:
                self.on_finding(finding)

    def _not_run(self) -> str | None:
        """Return why nothing is run, or None."""
        place = self.runner.backend
        return (
            self._not_offered()
            or backend(place).refuses(self.subject, self.dtype)
            or (self.check.NEEDS_A_NORM if self.op.own else "")
            or self.check.skips(self.subject, self.op, self.dtype, place)
            or refused(self.subject, self.runner, self.dtype)
        )

    def _not_offered(self) -> str | None:
        offered = self.dtype in self.subject.dtypes
        return None if offered else f"{self.subject.name} does not declare {self.dtype}"

    def _steering(self, plan: Plan, budget: Budget, line: Line) -> Steering:
        """Return the shapes that the search begins with; the line says which it has no time for."""
        cases, seconds = budget.steered
        if not plan.reaching or self.first:
            return Steering()
        found = (
            sweep(self.subject, self.dtype, self.runner.backend, self.runner.options)
            if cases and seconds
            else Sweep()
        )
        reaching = found.whole if plan.gradients else found.forward
        if plan.most_reaching is not None:
            apart: CalledApart = {}
            if cases and seconds and self.check.dry_ways is not no_ways:
                apart = called_apart(self.subject, self.dtype, self.runner.backend, self.runner.options)
            return self._few(plan, budget, line, reaching, apart.get(self.check_name, ()))
        if plan.for_many is not None:
            return self._for_many(plan.for_many, budget, line, found)
        brief = budget.brief
        by_bounds = self.check_name in CODE_SHOWN_BY
        again = wanted_again(self.subject, plan, few=brief)
        chosen = steering(
            self.subject.extents,
            reaching,
            cases=cases,
            seconds=seconds,
            again=again if by_bounds else lambda _: (),
            besides=VARIED_AT_LEAST[brief],
            for_news=NEWS_BESIDES if brief and by_bounds else 0.0,
        )
        if note := chosen.note(budget.words):
            line.notes.append(note)
        if found.why:
            line.notes.append(f"no shapes were chosen by what they launch: {found.why}")
        left_out = frozenset((str(shape), shape.seconds) for shape in chosen.left_out if not shape.variation)
        swept = Reach(
            left_out=left_out,
            unswept=frozenset({found.why} - {""}),
            launchable=found.launched,
            turnable=found.loops,
            without_room=frozenset(_without_room(chosen.left_out)),
            refused=frozenset(found.refused),
        )
        self.reach = joined((self.reach, swept))
        return chosen

    def _few(
        self, plan: Plan, budget: Budget, line: Line, reaching: Sequence[Reaching], apart: Sequence[Reaching]
    ) -> Steering:
        """Choose of a check with few cases: what reaches most, once, and where its own calls differ.

        What the former leave out is no loss, for other checks run it; of the latter no other check does.
        """
        cases, seconds = budget.steered
        once = self.dtype != (self.first_dtype or self.subject.dtypes[0])
        if plan.reaching_rows is not None:
            tried, drawn = {columns for _, columns in plan.shapes or ()}, plan.shapes is None
            variant = plan.variants_of(self.op)[0]
            lengths = lengths_alone(reaching, plan.reaching_rows, variant, steps=drawn)
            reaching = [
                s for s in lengths if s.columns not in tried and not (drawn and plan.fits(s.rows, s.columns))
            ]
        few = steering(
            (),
            () if once else without_many(reaching),
            cases=min(cases, plan.most_reaching or 0),
            seconds=seconds,
        )
        own = steering((), apart, cases=cases, seconds=seconds)
        self._leave_out(own, budget, line)
        return Steering(shapes=(*few.shapes, *own.shapes))

    def _for_many(self, quick: int, budget: Budget, line: Line, found: Sweep) -> Steering:
        """Choose where more rows are launched otherwise than few: no other check compares the two."""
        cases, seconds = budget.steered
        cases = min(cases, quick) if budget.brief else cases
        chosen = steering((), found.for_many, cases=cases, seconds=seconds)
        self._leave_out(chosen, budget, line)
        return chosen

    def _leave_out(self, chosen: Steering, budget: Budget, line: Line) -> None:
        if note := chosen.note(budget.words):
            line.notes.append(note)
        left_out = frozenset((str(shape), shape.seconds) for shape in chosen.left_out)
        self.reach = joined((self.reach, Reach(left_out=left_out)))

    def _measure_dtypes(self, plan: Plan, line: Line) -> None:
        """Try once what is not promised of dtypes, where the search passed and has not ended for time."""
        brief = self.first or self.budget.cases < LEAST_STEERED or self.budget.spent(0)
        if not brief and rules.line_verdict(line) is Verdict.PASS:
            every = (unpromised_dtypes.OF_PARAMETERS, unpromised_dtypes.OF_RESIDUALS)
            found = (unpromised_dtypes.measured(self, plan, promise) for promise in every)
            line.measured.update(one for one in found if one is not None)

    def _shortened(self, plan: Plan, first: Steering) -> Plan:
        return plan.few_shapes(long=not first.shapes) if self._is_short() else plan

    def _is_short(self) -> bool:
        """Return whether the budget has no room for many shapes, each of which is compiled anew."""
        if self.subject.language == "torch" or self.brief is not None:
            return bool(self.brief) and self.subject.language != "torch"
        brief = self.budget.until is not None and self.budget.until - time.monotonic() < SHORT_SECONDS
        return brief or self.budget.cases <= BUDGETS["quick"]

    def _line(self) -> Line:
        return Line(
            subject=self.subject.name,
            check=self.check_name,
            dtype=self.dtype,
            backend=self.runner.backend,
            variance=self._algorithm(),
            path=str(self.subject.path),
        )

    def _algorithm(self) -> str:
        """Name what is claimed: the variance algorithm, or the form where bounds rest on no variance."""
        claim = self.subject.claim
        named = claim.variance or (self.op.form(claim, self.dtype).name if self.op.claimed(claim) else "none")
        return f"{named} (read)" if claim.read else named

    def _conclude(self, line: Line, search: Search) -> None:
        """Say what else is to be known of the line."""
        measured = tally.measured_in_words(line)
        if rules.only_measured(line):
            line.skipped = "; ".join(measured)
        else:
            line.notes += measured
        if not line.skipped and rules.none_judged(line):
            line.excluded = list(search.excluded)
            line.notes += map(tally.left_out_by, line.excluded)
        if self.code is not None and self.check_name in CODE_SHOWN_BY:
            code = code_near_subject(self.code, self.subject.path)
            line.notes += self.claims.notes if self.claims is not None else []
            self._compare_trees(line)
            line.notes += [summary(code), *remarks(self.subject, self.dtype, code)]
        if hopeless := search.hopeless():
            line.notes.append(f"the search ended early: {hopeless}")
        if line.counts[Verdict.NO_THEOREM] and not self.op.own and not self.op.claimed(self.subject.claim):
            line.notes.append(UNCLAIMED)
            if why := why_unread(self.subject, self.dtype):
                line.notes.append(f"nothing was read from the compiled code: {why}")

    def _compare_trees(self, line: Line) -> None:
        """Say which declared trees are not those of the compiled code."""
        if self.first or self.budget.cases < LEAST_STEERED or self.budget.spent(0):
            return
        backward = self.check_name == "gradient" and bool(self.op.differentiable)
        read = compiled_trees(self.subject, self.runner, self.dtype, gradients=backward)
        line.notes += told(read)
        line.trees = () if isinstance(read, str) else read


def _without_room(shapes: Iterable[Reaching]) -> Iterator[WithoutRoom]:
    """Yield the kernels that shapes without room launch, and the loops that turn again there."""
    for shape in shapes:
        for what, line in (*((kernel, 0) for kernel in shape.launches), *shape.turns):
            yield WithoutRoom(what, line, shape.rows, shape.columns, shape.seconds)
