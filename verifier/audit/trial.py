"""One check put to one subject with one dtype at one place: judges cases and names what is found."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field, replace
from typing import Any

from verifier.audit import rules
from verifier.audit.claims_at_cases import ClaimsAtCases
from verifier.audit.declaration_text import declaration_text
from verifier.audit.read_claim import silent
from verifier.audit.source_names import near_subject
from verifier.checks import check
from verifier.checks.support.check import Check
from verifier.checks.support.session import Session, StoppedError
from verifier.execution import Runner
from verifier.execution.backends import backend
from verifier.execution.preloaded import StartError
from verifier.ops import Op, Setting, op
from verifier.records import reach
from verifier.records.case import Case
from verifier.records.compiled_code import CompiledCode, joined
from verifier.records.observation import Observation
from verifier.records.reach import NOTHING, Reach
from verifier.records.subject import KnownDefect, Subject
from verifier.records.verdict import FailureKey, Finding, Outcome, Verdict

RUNNING_BOUND = "running_bound"
"""The check that needs no claim: what the roundings of the code that ran can explain."""
MOST_EXPLAINED = 1 << 20
"""Elements of a case that is run once more with a bound beside each float."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A case with the outcome that is a finding; detail: a traceback of what stopped it."""

    case: Case
    outcome: Outcome
    detail: str = ""

    @property
    def key(self) -> FailureKey:
        """What makes it like others."""
        return rules.failure_key(self.outcome)


@dataclass(kw_only=True)
class Trial:
    """One subject, check, dtype and backend.

    claims: reads the code at the calls of cases, where bounds rest on what was read at another shape; None:
    nothing is read. code: what is known of all code that was executed so far. reach: what of the sources has
    run, as far as no other trial has heard of it from the same process.
    """

    subject: Subject
    check_name: str
    dtype: str
    runner: Runner
    claims: ClaimsAtCases | None = field(default=None, init=False)
    code: CompiledCode | None = field(default=None, init=False)
    reach: Reach = field(default=NOTHING, init=False)

    @property
    def check(self) -> Check:
        """The check that is put to the subject."""
        return check(self.check_name)

    @property
    def op(self) -> Op:
        """The op of the subject."""
        return op(self.subject.op)

    @property
    def setting(self) -> Setting:
        """What bounds may assume of the place."""
        found: Setting = backend(self.runner.backend).setting(self.subject, self.dtype)
        return found

    def judge(self, case: Case) -> tuple[list[Outcome], str]:
        """Run the check on a case; also return the detail (a traceback) of what stopped it.

        Executions that launched no kernel make no PASS: what they got wrong stands, and the rest is open.
        An exception of the check, the oracle or a bound is the verifier's own failure on this case.

        Raises:
            StartError: there is no process to run anything in.

        """
        if (proved := self._by_proof(case)) is not None:
            return proved
        outcomes, detail = self._judged(case, self.check, self.subject)
        return (self._founded(case, outcomes) if self.subject.claim.read else outcomes), detail

    def _by_proof(self, case: Case) -> tuple[list[Outcome], str] | None:
        """Judge a case by the bounds of what its code is proved to be at its very call, if that is read.

        What fails by them is judged as if nothing were read there, and does not pass: one of the two is
        wrong.
        """
        if self.claims is None:
            return None
        read = self.claims.at(case)
        if read is None:
            return None
        ran: list[CompiledCode | None] = []
        outcomes, detail = self._judged(case, self.check, read.subject, ran)
        if not all(read.is_of(code) for code in ran):
            self.claims.unread["other code ran than was read"] += 1
            return None
        self.claims.taken += 1
        failed = [o for o in outcomes if o.verdict is Verdict.FAIL and o.output != "declaration"]
        if not failed:
            return outcomes, detail
        plain, detail = self._judged(case, self.check, self.subject)
        plain = self._founded(case, plain)
        wrong = {o.output for o in plain if o.verdict in {Verdict.FAIL, Verdict.UNDECIDED}}
        beyond = [o for o in failed if o.output not in wrong]
        return [*plain, *(rules.beyond_a_proof(self.subject, o) for o in beyond)], detail

    def _founded(self, case: Case, outcomes: list[Outcome]) -> list[Outcome]:
        """Leave undecided what fails by bounds of a claim that was read of another shape, and by them alone.

        A failure stands that the same case shows without any claim, or that no rounding of the code that ran
        explains.
        """
        failed = [o for o in outcomes if o.verdict is Verdict.FAIL]
        if not failed:
            return outcomes
        plain, _ = self._judged(case, self.check, silent(self.subject))
        # What is beyond a bound here may there be bits that differ between calls: the result is the same.
        proved = {o.output: o for o in plain if o.verdict is Verdict.FAIL}
        wrong: dict[str, Outcome] = {}
        explains = check(RUNNING_BOUND)
        place, small = self.runner.backend, case.elements <= MOST_EXPLAINED
        unproved = any(o.output not in proved for o in failed)
        if unproved and small and not explains.skips(self.subject, self.op, self.dtype, place):
            seen, _ = self._judged(case, explains, silent(self.subject))
            wrong = {o.output: o for o in seen if o.verdict is Verdict.FAIL}

        def founded(outcome: Outcome) -> Outcome:
            if outcome.output not in proved:
                return rules.by_a_read_claim(self.subject, outcome, wrong.get(outcome.output))
            found = proved[outcome.output]
            same = rules.failure_key(found) == rules.failure_key(outcome)
            return outcome if same else replace(found, tried=outcome.tried)

        return [founded(o) if o.verdict is Verdict.FAIL else o for o in outcomes]

    def _judged(
        self, case: Case, asked: Check, subject: Subject, ran: list[CompiledCode | None] | None = None
    ) -> tuple[list[Outcome], str]:
        """Put a check to the case, with the subject as it is declared here; see `judge`.

        ran: takes what is known of the code of all executions.
        """
        session = Session(
            subject=subject,
            case=case,
            backend=self.runner.backend,
            setting=backend(self.runner.backend).setting(subject, self.dtype),
            run=self._run,
        )
        try:
            outcomes = [rules.promised(subject, case, self._near(o)) for o in asked.check(session)]
            if session.unlaunched:
                return rules.without_passes(outcomes, session.unlaunched), ""
        except StoppedError as stopped:
            return [self._near(stopped.outcome)], stopped.detail
        except StartError:
            raise
        except Exception as error:
            return [self._near(rules.own_failure(error, self.subject.path))], traceback.format_exc()
        else:
            return outcomes, ""
        finally:
            if ran is not None:
                ran.append(session.compiled)
            self.code = joined(code for code in (self.code, session.compiled) if code is not None)

    def _run(self, subject: Subject, case: Case, **options: Any) -> Observation:
        """Run the subject, and keep what of its sources ran."""
        seen = self.runner.run(subject, case, **options)
        self.reach = reach.joined((self.reach, seen.reach, reach.of_case(case)))
        return seen

    def _near(self, outcome: Outcome) -> Outcome:
        """Return the outcome with sources named as files near the subject's own."""
        near = near_subject(outcome.message, self.subject.path)
        return outcome if near == outcome.message else replace(outcome, message=near)

    def is_outside(self, case: Case) -> bool:
        """Return whether a case lies outside the declared domain."""
        return rules.outside(self.subject, case)

    def is_finding(self, case: Case, outcome: Outcome) -> bool:
        """Return whether an outcome is a finding, given the declared domain."""
        return rules.is_finding(self.subject, self.check, case, outcome)

    def as_counted(self, case: Case, outcome: Outcome) -> Outcome:
        """Count what is no finding outside the domain as not judged."""
        return rules.as_counted(self.subject, self.check, case, outcome)

    def fails_alike(self, case: Case, key: FailureKey) -> Failure | None:
        """Judge a case; return its finding of this key, if there is one."""
        outcomes, detail = self.judge(case)
        alike = (o for o in outcomes if rules.failure_key(o) == key and self.is_finding(case, o))
        same = next(alike, None)
        return None if same is None else Failure(case=case, outcome=same, detail=detail)

    def examine_case(self, case: Case) -> tuple[Finding | None, list[Outcome]]:
        """Judge one case as it is; return the finding, if it is one, and all outcomes."""
        outcomes, detail = self.judge(case)
        bad = next((o for o in outcomes if self.is_finding(case, o)), None)
        found = None if bad is None else self.finding(Failure(case=case, outcome=bad, detail=detail))
        return found, outcomes

    def finding(self, failure: Failure) -> Finding:
        """Return the finding that a failure is."""
        return Finding(
            subject=self.subject.name,
            path=str(self.subject.path),
            check=self.check_name,
            op=self.subject.op,
            dtype=self.dtype,
            backend=self.runner.backend,
            verdict=failure.outcome.verdict,
            outcome=failure.outcome,
            case=failure.case,
            declaration=declaration_text(self.subject, self.dtype, self.setting),
            detail=failure.detail,
            multiprocessors=int(str(self.runner.options.get("multiprocessors", 0))),
        )

    def known_defects(self) -> list[KnownDefect]:
        """Return the declared defects that this check may meet here."""
        place = self.runner.backend
        known = self.subject.known_defects
        return [d for d in known if d.concerns(self.check_name) and d.observable(place, self.dtype)]
