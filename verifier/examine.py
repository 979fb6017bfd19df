"""Examines one subject by one check with one dtype at one place: cases in, a `Line` with findings out."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from strategies.layouts import Layout, simpler_layouts
from strategies.reduce import reduce
from verifier import case as cases
from verifier.affine import NOT_FINITE, OVERFLOW
from verifier.backends import backend
from verifier.case import Case
from verifier.checks import Session, StoppedError, check
from verifier.compiled import Compiled, joined, remarks, summary
from verifier.declaration import declaration_text
from verifier.ops import op
from verifier.places import beside, code_beside
from verifier.printable import said
from verifier.recipes import Plan, Recipe, assemble, build, covering, recipes, to_be_tried, tried
from verifier.runner import Runner
from verifier.runner.preloaded import StartError
from verifier.subjects import KnownDefect, Subject
from verifier.verdicts import BAD, Finding, Line, Outcome, Verdict, failure_key

FINDINGS_PER_LINE = 3
BUDGETS = {"quick": 25, "standard": 200, "deep": 2000}
"""Cases per subject, check and dtype."""
COVERING_SHARE = 0.6
"""Share of a budget that the fixed list gets, unless it ends before; Hypothesis draws the rest."""
MUST_SHARE = 0.8
"""The same while something is left that must be tried for a PASS."""
OUTSIDE_SHARE = 0.1
"""Cases outside the declared domain for each one inside; they come on top of the budget."""
SHORT_SECONDS = 60.0
"""Of one line: in less time a compiled kernel meets few shapes."""
PATIENCE = 800
"""Recipes of the fixed list in a row that may be unwanted (known defects, numbers outside the domain)."""
MOST_DRAWS = 4
"""Examples that Hypothesis is asked for beside each case that is wanted: some are not, or known already."""
DRAWS_AT_ONCE = 500
"""Examples that Hypothesis is asked for at a time, at most."""
CODE_SHOWN_BY = ("forward_error", "gradient")
"""Checks whose lines say what the compiled code consists of: forward, and forward and backward."""
UNCLAIMED = "nothing is claimed, so no bound applies: `norm-verifier describe` proposes variance= or formula="
LEFT_OUT = "left out of the search by a known defect: "
"""How a note begins that says why a search had no case."""
DEATHS_PER_LINE = 3
"""Deaths of the subject's process after which a search ends: nothing more is to be learned from others."""
TIMEOUTS_PER_LINE = 2
"""Cases without an answer after which a search ends: each costs a whole limit, the first of a subject two."""
CRASHES_PER_LINE = 12
"""Cases after which a search ends if each of them was an error: the kernel does not run at all."""
REDUCTION_CALLS = 120
REDUCTION_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long to search: a number of cases, until a moment of time.monotonic(), or so many findings."""

    cases: int = BUDGETS["quick"]
    until: float | None = None
    findings: int = FINDINGS_PER_LINE

    def spent(self, done: int) -> bool:
        """Return whether to stop after so many cases."""
        return done >= self.cases or (self.until is not None and time.monotonic() >= self.until)


@dataclass(kw_only=True)
class Examination:
    """One subject, check, dtype and backend, with what the search needs to remember.

    first: how many recipes of the fixed list an earlier search has tried already.
    reported: keys (see `failure_key`) of failures that are known and not reported again.
    """

    subject: Subject
    check_name: str
    dtype: str
    runner: Runner
    budget: Budget = field(default_factory=Budget)
    seed: int = 0
    ignore_known: bool = False
    only: Callable[[Case], bool] | None = None
    first: int = 0
    reported: frozenset[str] = frozenset()
    on_finding: Callable[[Finding], None] | None = None
    on_case: Callable[[], None] | None = None
    _deaths: int = 0
    _inside: int = 0
    _gradients: bool = False
    _list_until: float | None = None
    _drawn: set[str] = field(default_factory=set)
    _last: tuple[Recipe, Case | None] | None = None
    _code: Compiled | None = None
    _excluded: dict[str, None] = field(default_factory=dict)

    def run(self) -> Line:
        """Replay the witnesses of known defects, then search; findings come shrunk."""
        started = time.monotonic()
        line = self._line()
        the_check, the_op = check(self.check_name), op(self.subject.op)
        place = backend(self.runner.backend)
        reason = (
            _not_offered(self.subject, self.dtype)
            or place.refuses(self.subject, self.dtype)
            or the_op.inapplicable.get(self.check_name)
            or the_check.skips(self.subject, the_op, self.dtype, self.runner.backend)
        )
        if reason:
            line.skipped = reason
            return line
        if not self.ignore_known:
            self._replay_witnesses(line)
        everywhere = [d for d in self._known() if d.where is None and d.check == self.check_name]
        if self.ignore_known or not everywhere:
            plan = the_check.plan(self.subject, the_op)
            self._search(line, plan.few_shapes() if self._is_short() else plan)
        elif not line.findings:
            line.skipped = f"known defect: {everywhere[0].reason} (no witness for {self.dtype} here)"
        measured = _measured(line.measured)
        if measured and set(line.counts) <= {Verdict.SKIPPED} and not line.findings:
            line.skipped = "; ".join(measured)
        else:
            line.notes += measured
        if not line.skipped and not set(line.counts) - {Verdict.SKIPPED}:
            line.notes += [f"{LEFT_OUT}{reason}" for reason in self._excluded]
        if self._code is not None and self.check_name in CODE_SHOWN_BY:
            code = code_beside(self._code, self.subject.path)
            line.notes += [summary(code), *remarks(self.subject, self.dtype, code)]
        if hopeless := self._hopeless(line):
            line.notes.append(f"the search ended early: {hopeless}")
        if line.counts[Verdict.NO_THEOREM] and not the_op.own and not the_op.claimed(self.subject.claim):
            line.notes.append(UNCLAIMED)
        line.seconds = time.monotonic() - started
        return line

    def _is_short(self) -> bool:
        """Return whether the budget has no room for many shapes, each of which is compiled anew."""
        if self.subject.language == "torch":
            return False
        brief = self.budget.until is not None and self.budget.until - time.monotonic() < SHORT_SECONDS
        return brief or self.budget.cases <= BUDGETS["quick"]

    def _line(self) -> Line:
        return Line(
            subject=self.subject.name,
            check=self.check_name,
            dtype=self.dtype,
            backend=self.runner.backend,
            variance=self._algorithm(),
        )

    def _algorithm(self) -> str:
        """Name what is claimed: the variance algorithm, or the form where bounds rest on no variance."""
        claim, the_op = self.subject.claim, op(self.subject.op)
        if claim.variance is not None or not the_op.claimed(claim):
            return claim.variance or "none"
        return the_op.form(claim, self.dtype).name

    # -- known defects -------------------------------------------------------------------------

    def _known(self) -> list[KnownDefect]:
        place = self.runner.backend
        return [
            d
            for d in self.subject.known_defects
            if d.concerns(self.check_name) and d.observable(place, self.dtype)
        ]

    def _left_out(self, case: Case) -> bool:
        """Return whether the search passes this case over, because of a known defect or a restriction."""
        if self.only is not None and not self.only(case):
            return True
        if self.ignore_known:
            return False
        why = next((d.reason for d in self._known() if d.where is None or d.where(case)), None)
        if why is not None:
            self._excluded[why] = None
        return why is not None

    def _replay_witnesses(self, line: Line) -> None:
        for defect in (d for d in self.subject.known_defects if d.check == self.check_name):
            if not defect.observable(self.runner.backend, self.dtype):
                line.notes.append(f"known defect not observable here: {defect.reason}")
                continue
            path = self.subject.witness_file(defect, self.dtype)
            if not path.is_file():
                line.notes.append(f"known defect without a witness for this dtype: {defect.reason}")
                continue
            try:
                replayed = self._replayed(line, defect, path)
            except cases.CaseError as error:
                line.notes.append(f"known defect with a witness that is damaged: {error}")
                continue
            if replayed is not None:
                line.findings.append(replayed)

    def _replayed(self, line: Line, defect: KnownDefect, path: Path) -> Finding | None:
        """Run a witness, which is expected to fail as its file says: passing or failing otherwise is news.

        On another backend it is noted alone: what memory held before or the order of blocks is another there.
        """
        case, document = cases.load(path)
        outcomes, detail = self.judge(case)
        line.add(case, outcomes, outside=False, detail=detail)
        found = [o for o in outcomes if self.is_finding(case, o)]
        wanted = document.get("failure")
        elsewhere = document.get("backend") != self.runner.backend
        alike = next((o for o in found if failure_key(o) == wanted), None)
        if alike is None and elsewhere:
            alike = next((o for o in found if _akin(str(wanted), o)), None)
            if alike is not None:
                text = f"known defect seen otherwise than on {document.get('backend')}: {defect.reason}"
                line.notes.append(text)
        if alike is not None and document.get("check") == defect.check:
            seen = self._finding(case, alike, detail)
            return replace(seen, expected=True, reason=defect.reason, file=str(path))
        if not found and elsewhere:
            line.notes.append(
                f"known defect not shown here by its witness of {document.get('backend')}: {defect.reason}"
            )
            return None
        if not found:
            text = f"known defect no longer found: {defect.reason} (its witness passes)"
            return self._finding(case, Outcome(verdict=Verdict.FAIL, message=text), "")
        text = f"the witness of a known defect ({defect.reason}) fails otherwise: {found[0].message}"
        text += f" (its file {path.name} expects {wanted or 'nothing'} of {document.get('check')})"
        return self._finding(case, replace(found[0], message=text), detail)

    # -- search --------------------------------------------------------------------------------

    def _search(self, line: Line, plan: Plan) -> None:
        """Run the fixed list inside the domain, a few cases outside, and what Hypothesis draws inside."""
        seen, started = set(self.reported), time.monotonic()
        self._gradients = plan.gradients
        if self.budget.until is not None:
            self._list_until = started + COVERING_SHARE * (self.budget.until - started)
        inside, outside = plan.within(self.subject.domain), self._outside(line, plan, PATIENCE // 10)
        line.untried = [*to_be_tried(self.subject, inside), *self._demands()]
        line.listed = self.first
        count = 0
        if not inside.empty:
            for recipe in islice(self._listed(line, inside), self.first, None):
                if self._list_ends(line, count):
                    break
                self._run(line, inside, recipe, seen)
                line.listed, count = line.listed + 1, count + 1
                self._venture(line, outside, count, seen)
        self._hypothesis(line, inside, seen, count, lambda done: self._venture(line, outside, done, seen))
        if self.subject.domain is not None and not (self._inside or line.left_out):
            most = f"{plan.max_rows} rows, {plan.max_columns} columns and {plan.max_elements} elements"
            tells = f", which are of at most {most}" if inside.empty else ""
            if not self.budget.spent(0):
                line.notes.append(f"no case lies inside the declared domain of those that are tried{tells}")
        if not line.counts:  # what is looked for lies outside altogether
            outside = self._outside(line, plan, PATIENCE)
            for done in range(1, min(self.budget.cases, BUDGETS["standard"]) + 1):
                self._venture(line, outside, done, seen)

    def _demands(self) -> tuple[str, ...]:
        """Return what the check itself says must be tried for a PASS, beside what its plan says."""
        named = getattr(check(self.check_name), "must_be_tried", None)
        return () if named is None else tuple(named(self.subject))

    def _list_ends(self, line: Line, count: int) -> bool:
        """Return whether the fixed list has had its share; what must be tried may ask for a larger one."""
        share = MUST_SHARE if line.untried else COVERING_SHARE
        late = self._list_until is not None and time.monotonic() >= self._list_until
        enough = count >= max(1, round(self.budget.cases * share))
        return enough or late or self.budget.spent(count) or self._found_enough(line)

    def _listed(self, line: Line, plan: Plan) -> Iterator[Recipe]:
        """Yield the recipes of the fixed list whose cases are to be run."""

        def wanted(recipe: Recipe) -> bool:
            case = self._built(plan, recipe)
            return case is not None and not self._is_outside(case) and not self._passed_over(line, case)

        return covering(self.subject, plan, accept=wanted, patience=PATIENCE)

    def _outside(self, line: Line, plan: Plan, patience: int) -> Iterator[Recipe]:
        """Yield recipes outside the domain; none where none is declared."""

        def wanted(recipe: Recipe) -> bool:
            case = self._built(plan, recipe)
            return case is not None and self._is_outside(case) and not self._passed_over(line, case)

        if self.subject.domain is None:
            return iter(())
        every = covering(self.subject.differing(domain=None), plan, accept=wanted, patience=patience)
        return islice(every, round(self.first * OUTSIDE_SHARE), None)

    def _venture(self, line: Line, outside: Iterator[Recipe], done: int, seen: set[str]) -> None:
        """Run a case outside the domain where so many inside call for one more."""
        if line.outside < OUTSIDE_SHARE * done and not self.budget.spent(0) and not self._found_enough(line):
            recipe = next(outside, None)
            if recipe is not None:
                self._run(line, Plan(gradients=self._gradients), recipe, seen)

    def _built(self, plan: Plan, recipe: Recipe) -> Case | None:
        """Return the case of a recipe; the last one is kept."""
        if self._last is None or self._last[0] != recipe:
            the_op = op(self.subject.op)
            case = build(the_op, self.subject, self.dtype, recipe, gradients=plan.gradients)
            self._last = (recipe, case)
        return self._last[1]

    def _is_outside(self, case: Case) -> bool:
        return self.subject.domain is not None and self.subject.domain.excludes(case) is not None

    def _passed_over(self, line: Line, case: Case) -> bool:
        """Return whether the search leaves a case out, and count it."""
        left = self._left_out(case)
        line.left_out += left
        return left

    def _hopeless(self, line: Line) -> str:
        """Return why more cases would tell nothing more, or nothing."""
        if self._deaths >= DEATHS_PER_LINE or line.counts[Verdict.TIMEOUT] >= TIMEOUTS_PER_LINE:
            return "the subject's process died or had to be stopped"
        crashes = line.counts[Verdict.CRASH]
        if crashes >= CRASHES_PER_LINE and crashes + line.counts[Verdict.SKIPPED] == line.counts.total():
            return f"each of {crashes} cases ended in an error"
        return ""

    def _found_enough(self, line: Line) -> bool:
        """Return whether to end: there are as many findings as asked for, or the subject keeps dying."""
        if self._hopeless(line):
            return True
        return self.budget.findings < FINDINGS_PER_LINE and len(line.findings) >= self.budget.findings

    def _hypothesis(
        self, line: Line, plan: Plan, seen: set[str], count: int, venture: Callable[[int], None]
    ) -> None:
        """Let Hypothesis draw the rest, with another seed after each failure."""
        new_seed = self.seed
        while not plan.empty and not self.budget.spent(count) and not self._found_enough(line):
            tried, failed = self._draw(line, plan, seen, count, new_seed)
            if tried == 0 or (failed and len(line.findings) >= self.budget.findings):
                return
            count, new_seed = count + tried, new_seed + 1
            venture(count)

    def _draw(self, line: Line, plan: Plan, seen: set[str], count: int, new_seed: int) -> tuple[int, bool]:
        """Run Hypothesis once; it shrinks the descriptor of the first failure it meets.

        Returns how many cases were run, and whether one failed.
        """
        strategy = recipes(op(self.subject.op), self.subject, self.dtype, plan)
        state = _Shrinking(calls=REDUCTION_CALLS, until=self.budget.until)

        def test(recipe: Recipe) -> None:
            ended = self.budget.spent(count + state.tried) or self._found_enough(line)
            if state.failure is None and ended:
                raise _Enough
            if state.failure is None and repr(recipe) not in self._drawn:
                self._drawn.add(repr(recipe))
                case = self._built(plan, recipe)
                wanted = case is not None and not self._is_outside(case) and not self._passed_over(line, case)
                if wanted:
                    state.tried += 1
                    self._run(line, plan, recipe, seen, collect=state)
            elif state.failure is not None:
                state.retry(recipe, lambda r: self._fails_alike(plan, r, state))
            if repr(recipe) in state.failing:
                raise AssertionError("a check failed")

        quiet = settings(
            max_examples=min(MOST_DRAWS * (self.budget.cases - count), DRAWS_AT_ONCE),
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            print_blob=False,
        )
        try:
            with contextlib.suppress(_Enough):
                seed(new_seed)(quiet(given(strategy)(test)))()
        except AssertionError:
            assert state.best is not None
            self._report(line, seen, *state.best)
        return state.tried, state.failure is not None

    def _run(
        self, line: Line, plan: Plan, recipe: Recipe, seen: set[str], *, collect: _Shrinking | None = None
    ) -> None:
        """Run one recipe; report a new kind of failure, or leave it to Hypothesis to shrink."""
        case = self._built(plan, recipe)
        assert case is not None
        outcomes, detail = self.judge(case)
        self._deaths += any(o.facts.get("died") for o in outcomes)
        if self.on_case:
            self.on_case()
        outside = self._is_outside(case)
        self._inside += not outside
        counted = [self._as_counted(case, o) for o in outcomes]
        verdict = line.add(case, counted, outside=outside, detail=detail)
        if not outside and verdict in {Verdict.PASS, *BAD}:
            done = tried(recipe, case, plan).union(*(o.facts.get("tried", ()) for o in outcomes))
            line.untried = [name for name in line.untried if name not in done]
        for outcome in outcomes:
            if not self.is_finding(case, outcome) or failure_key(outcome) in seen:
                continue
            if collect is not None:
                collect.found(recipe, case, outcome, detail)
                break
            self._report(line, seen, case, outcome, detail)

    def _fails_alike(self, plan: Plan, recipe: Recipe, state: _Shrinking) -> tuple[Case, Outcome, str] | None:
        case = self._built(plan, recipe)
        assert state.failure is not None
        if case is None or self._is_outside(case) or self._left_out(case):
            return None
        outcomes, detail = self.judge(case)
        same = next(
            (o for o in outcomes if failure_key(o) == state.failure and self.is_finding(case, o)), None
        )
        return None if same is None else (case, same, detail)

    def judge(self, case: Case) -> tuple[list[Outcome], str]:
        """Run the check on a case; also return the detail (a traceback) of what stopped it.

        Executions that launched no kernel make no PASS: what they got wrong stands, and the rest is open.
        An exception of the check, the oracle or a bound is the verifier's own failure on this case.

        Raises:
            StartError: there is no process to run anything in.

        """
        place = backend(self.runner.backend)
        session = Session(
            subject=self.subject,
            case=case,
            backend=self.runner.backend,
            setting=place.setting(self.subject, self.dtype),
            run=self.runner.run,
        )
        try:
            outcomes = [self._promised(case, self._near(o)) for o in check(self.check_name).check(session)]
            return (_undecided(outcomes, session.unlaunched) if session.unlaunched else outcomes), ""
        except StoppedError as stopped:
            return [self._near(stopped.outcome)], stopped.detail
        except StartError:
            raise
        except Exception as error:
            return [self._near(own_failure(error, self.subject.path))], traceback.format_exc()
        finally:
            self._code = joined(code for code in (self._code, session.compiled) if code is not None)

    def _near(self, outcome: Outcome) -> Outcome:
        """Return the outcome with sources named as they stand beside the subject's own file."""
        near = beside(outcome.message, self.subject.path)
        return outcome if near == outcome.message else replace(outcome, message=near)

    def _promised(self, case: Case, outcome: Outcome) -> Outcome:
        """Take the pass from a result that in part has no theorem, inside a domain that promises values."""
        domain = self.subject.domain
        if outcome.verdict is not Verdict.PASS or not outcome.uncovered or _excused(outcome):
            return outcome
        if domain is None or not domain.numeric or domain.excludes(case) or not case.finite:
            return outcome
        return replace(outcome, verdict=Verdict.NO_THEOREM)

    def examine_case(self, case: Case) -> tuple[Finding | None, list[Outcome]]:
        """Judge one case as it is; return the finding, if it is one, and all outcomes."""
        outcomes, detail = self.judge(case)
        bad = next((o for o in outcomes if self.is_finding(case, o)), None)
        return (None if bad is None else self._finding(case, bad, detail)), outcomes

    def is_finding(self, case: Case, outcome: Outcome) -> bool:
        """Return whether an outcome is a finding, given the declared domain."""
        outside = self._is_outside(case)
        if outcome.verdict in BAD:
            if self._beyond_promised_values(case, outcome):
                return False
            # What is kept spoils later calls inside the domain: to be refused, as elsewhere.
            return not (outside and self.check_name == "finite" and not outcome.facts.get("kept"))
        if outcome.verdict is Verdict.REFUSED:
            return not outside
        promised = self.subject.domain is not None and self.subject.domain.numeric
        claimed = op(self.subject.op).claimed(self.subject.claim)
        # What has no exact value (a variance of one value over n - 1) has no theorem either.
        if _excused(outcome) or outcome.output in op(self.subject.op).undefined(case):
            return False
        return outcome.verdict is Verdict.NO_THEOREM and promised and not outside and claimed

    def _beyond_promised_values(self, case: Case, outcome: Outcome) -> bool:
        """Return whether wrong numbers are due to numbers of which nothing is promised.

        A wrapper cannot refuse by values. Guarantees hold whatever the values are, and so do demands on
        anything but results: what memory holds, which device is named, that there is an answer at all.
        """
        domain = self.subject.domain
        if domain is None or domain.excludes_values(case) is None or outcome.verdict is not Verdict.FAIL:
            return False
        judges_numbers = outcome.worst is not None or getattr(check(self.check_name), "JUDGES_NUMBERS", False)
        return judges_numbers and self.check_name not in self.subject.guarantees

    def _as_counted(self, case: Case, outcome: Outcome) -> Outcome:
        """Count what is no finding outside the domain as not judged."""
        outside = self._is_outside(case)
        bad = outcome.verdict in {Verdict.REFUSED, *BAD}
        if outside and bad and not self.is_finding(case, outcome):
            return replace(outcome, verdict=Verdict.SKIPPED, worst=None)
        return outcome

    # -- findings ------------------------------------------------------------------------------

    def _report(self, line: Line, seen: set[str], case: Case, outcome: Outcome, detail: str) -> None:
        seen.add(failure_key(outcome))
        if len(line.findings) >= self.budget.findings:
            return
        case, outcome, detail = self._shrink(case, outcome, detail)
        made = self._finding(case, outcome, detail)
        line.findings.append(made)
        if self.on_finding:
            self.on_finding(made)

    def _finding(self, case: Case, outcome: Outcome, detail: str) -> Finding:
        place = backend(self.runner.backend)
        return Finding(
            subject=self.subject.name,
            path=str(self.subject.path),
            check=self.check_name,
            op=self.subject.op,
            dtype=self.dtype,
            backend=self.runner.backend,
            verdict=outcome.verdict,
            outcome=outcome,
            case=case,
            declaration=declaration_text(self.subject, self.dtype, place.setting(self.subject, self.dtype)),
            detail=detail,
        )

    def _shrink(self, case: Case, outcome: Outcome, detail: str) -> tuple[Case, Outcome, str]:
        """Reduce layouts, then rows, columns and numbers, while the same output fails in the same way."""
        if outcome.verdict is Verdict.TIMEOUT:
            return case, outcome, detail  # each attempt would cost a whole wall limit
        best = (case, outcome, detail)
        deadline = time.monotonic() + REDUCTION_SECONDS
        the_op = op(case.op)

        def attempt(candidate: Case) -> bool:
            nonlocal best
            if time.monotonic() > deadline:
                return False
            if self._left_out(candidate):
                return False
            outcomes, why = self.judge(candidate)
            same = next(
                (
                    o
                    for o in outcomes
                    if failure_key(o) == failure_key(outcome) and self.is_finding(candidate, o)
                ),
                None,
            )
            if same is not None:
                best = (candidate, same, why)
            return same is not None

        for name in list(case.layouts):
            _simplify_layout(best[0], name, attempt)
        start = best[0]

        def remade(tensors: Mapping[str, torch.Tensor]) -> Case:
            full = {**dict.fromkeys(start.tensors), **tensors}
            shown = {
                n: start.layouts[n].project(t).contiguous() if n in start.layouts else t
                for n, t in full.items()
                if t is not None
            }
            return assemble(
                the_op,
                start.dtype,
                {**full, **shown},
                start.scalars,
                start.layouts,
                hazard=start.hazard,
                origin=start.origin,
            )

        def still_fails(tensors: Mapping[str, torch.Tensor]) -> bool:
            return attempt(remade(tensors))

        if start.elements:
            links = the_op.links(start.tensors, start.scalars)
            # If the failure does not repeat (a nondeterministic kernel), the case stays as it was found.
            with contextlib.suppress(ValueError):
                reduce(start.given, still_fails, axes=links, budget=REDUCTION_CALLS)
        return best


class _Enough(BaseException):
    """Ends a run of Hypothesis whose budget is spent; no Exception, which it would take for a failure."""


@dataclass(kw_only=True)
class _Shrinking:
    """What Hypothesis met: the first failure, and the smallest that is like it."""

    calls: int
    until: float | None
    tried: int = 0
    failure: str | None = None
    best: tuple[Case, Outcome, str] | None = None
    failing: set[str] = field(default_factory=set)
    passing: set[str] = field(default_factory=set)

    def found(self, recipe: Recipe, case: Case, outcome: Outcome, detail: str) -> None:
        self.failure, self.best = failure_key(outcome), (case, outcome, detail)
        self.failing.add(repr(recipe))
        if outcome.facts.get("died"):
            self.calls = 0 if outcome.verdict is Verdict.TIMEOUT else min(self.calls, 2 * DEATHS_PER_LINE)

    def retry(self, recipe: Recipe, fails: Callable[[Recipe], tuple[Case, Outcome, str] | None]) -> None:
        """Try a smaller recipe, as long as there are calls left; what was tried is remembered."""
        name = repr(recipe)
        late = self.until is not None and time.monotonic() >= self.until
        if name in self.failing or name in self.passing or self.calls <= 0 or late:
            return
        self.calls -= 1
        again = fails(recipe)
        if again is None:
            self.passing.add(name)
        else:
            self.failing.add(name)
            self.best = again


def own_failure(error: Exception, declared_in: Path) -> Outcome:
    """Return what an exception in the verifier's process means, where a subject runs only what it declares.

    declared_in: the subject's file, whose own functions (a tree, a domain, a specification) may have raised.
    """
    frames = traceback.extract_tb(error.__traceback__)
    text = said(error)
    theirs = next((f for f in reversed(frames) if Path(f.filename) == declared_in), None)
    if theirs is not None:
        message = f"a function of the declaration ({theirs.name}, line {theirs.lineno}) raised {text}"
        return Outcome(verdict=Verdict.FAIL, output="declaration", message=message)
    last = frames[-1]
    return Outcome(verdict=Verdict.ERROR, message=f"{text} (in {last.name}, {last.filename}:{last.lineno})")


def _undecided(outcomes: list[Outcome], reasons: list[str]) -> list[Outcome]:
    """Keep of the outcomes what speaks against the subject; for these reasons the rest is undecided."""
    against = [o for o in outcomes if o.verdict in {Verdict.REFUSED, Verdict.ERROR, *BAD}]
    return against + [Outcome(verdict=Verdict.UNDECIDED, message=text) for text in dict.fromkeys(reasons)]


def _simplify_layout(case: Case, name: str, attempt: Callable[[Case], bool]) -> None:
    layouts: dict[str, Layout] = dict(case.layouts)
    for simpler in simpler_layouts(layouts[name]):
        others = {n: layout for n, layout in layouts.items() if n != name}
        if simpler != Layout():
            others[name] = simpler
        if attempt(case.with_layouts(others)):
            return


def _measured(counts: Mapping[str, int]) -> list[str]:
    """Return what was measured and on how many cases; what begins alike, up to "measured: ", in one text."""
    grouped: dict[str, list[str]] = {}
    for text, n in sorted(counts.items()):
        head, mark, seen = text.rpartition("measured: ")
        grouped.setdefault(head + mark, []).append(f"{seen} on {n} case{'' if n == 1 else 's'}")
    return [head + ", ".join(seen) for head, seen in grouped.items()]


def _akin(wanted: str, outcome: Outcome) -> bool:
    """Return whether another backend may see the failure of this key (see `failure_key`) as the outcome.

    It has the same output, or is of the same kind: wrong numbers, another demand broken, a crash, no answer.
    What an access out of bounds does beyond the machine is not defined: it may be garbage in any output.
    What the compiled code says of itself is the same everywhere; numbers that memory decides are not.
    """
    verdict, output, words = [*wanted.split("|"), "", ""][:3]
    same_kind = verdict == outcome.verdict and (words == "") == (outcome.worst is not None)
    same_kind = same_kind or (verdict == outcome.verdict and outcome.output == "declaration")
    if verdict != Verdict.FAIL:
        same_kind = verdict == outcome.verdict
    return same_kind or (output != "" and output == outcome.output) or words.startswith("OutOfBounds")


def _excused(outcome: Outcome) -> bool:
    """Return whether every reason why there is no theorem lies outside of what a domain can promise.

    A domain speaks of the input; weight, bias or gradient may still carry a result out of range.
    """
    reasons = set(outcome.facts.get("reasons", ()))
    return bool(reasons) and reasons <= {OVERFLOW, NOT_FINITE}


def _not_offered(subject: Subject, dtype: str) -> str | None:
    return None if dtype in subject.dtypes else f"{subject.name} does not declare {dtype}"
