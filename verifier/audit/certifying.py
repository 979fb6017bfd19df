"""Certifies what an audit judges, where that is asked for, and holds the two against each other.

A certificate speaks of all inputs of a shape, a finding of one of them: where both speak of the same case,
one is wrong, and that is an error of the verifier.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property

from strategies.values import Values
from verifier.audit.read_claim import claimed_at
from verifier.audit.run_audit import Job
from verifier.audit.trial import Trial
from verifier.audit.worker_pool import Died, pooled
from verifier.cases.recipe import build, recorded_recipe
from verifier.checks import check
from verifier.checks.support.certificate_at_shape import certified
from verifier.checks.support.session import gradient_names
from verifier.execution import Runner
from verifier.execution.backends import backend
from verifier.ops import op
from verifier.records.case import Case
from verifier.records.certificate import AskedCertificate, Certificate, Refusal
from verifier.records.subject import Subject
from verifier.records.verdict import Finding, Outcome, Verdict
from verifier.subjects.load_file import load_subject

PLACE = "machine"
FORMULA = "formula"
CONTRADICTED = frozenset({"forward_error", "gradient", FORMULA, "claim", "influence", "synchronization"})
"""Checks of which a finding and a certificate of the same case cannot both be right."""
TRIED = (("ordinary", 0), ("cancellation", 2), ("one_outlier", 2))
"""Hazards of the cases on which a certificate is held against those checks, with their strengths."""
DEFINITION = "the declared form is the definition of the op"
COMPILED = "the code that runs is recorded"
DECLARED = "the code is what is declared"

Shape = tuple[int, int]


def certificates(
    jobs: Sequence[Job],
    shapes: Sequence[Shape],
    *,
    seed: int = 0,
    workers: int = 1,
) -> Iterator[list[AskedCertificate]]:
    """Ask for a certificate of each subject and dtype, at each shape, forward and with gradients.

    Yields what came of it, a list for each subject and dtype, as they end. Where a worker dies, there is a
    refusal.
    """
    asked = list(dict.fromkeys((job.path, job.subject, job.dtype) for job in jobs if not job.missing))
    for number, result in _each(asked, shapes, seed, workers):
        yield _lost(asked[number], result) if isinstance(result, Died) else result


def _each(
    asked: Sequence[tuple[str, str, str]], shapes: Sequence[Shape], seed: int, workers: int
) -> Iterator[tuple[int, list[AskedCertificate] | Died]]:
    if workers <= 1 or len(asked) <= 1:
        for number, named in enumerate(asked):
            yield number, of_subject(*named, tuple(shapes), seed)
        return
    tasks = ((number, (*named, tuple(shapes), seed)) for number, named in enumerate(asked))
    with closing(pooled(of_subject, tasks, workers, backends=[PLACE])) as results:
        yield from results


def _lost(named: tuple[str, str, str], died: Died) -> list[AskedCertificate]:
    path, subject, dtype = named
    refused = Refusal(stage="the kernel runs to its end", why=f"the process died: {died.message}")
    return [AskedCertificate(subject=subject, path=path, dtype=dtype, found=refused)]


def of_subject(
    path: str, name: str, dtype: str, shapes: Sequence[Shape], seed: int
) -> list[AskedCertificate]:
    """Ask for the certificates of one subject and dtype."""
    subject = load_subject(path, name)
    if why := _unrecorded(subject, dtype):
        refused = Refusal(stage=COMPILED, why=why)
        return [AskedCertificate(subject=name, path=path, dtype=dtype, found=refused)]
    found = []
    with Runner(PLACE) as runner:
        for rows, columns in shapes:
            case = case_at(subject, dtype, rows, columns, Values(seed=seed))
            if case is None:
                continue  # the op or the subject has no such shape
            for gradients in calls(subject):
                claimed = claimed_at(subject, case, runner, gradients=gradients)
                asker = _Asker(subject=claimed, case=case, runner=runner, seed=seed)
                found.append(asker.asked(gradients=gradients))
    return found


def _unrecorded(subject: Subject, dtype: str) -> str:
    """Return why the machine cannot record a subject, or nothing."""
    place = backend(PLACE)
    if subject.language not in place.languages:
        return f"a subject in {subject.language} has no code that is compiled for the {PLACE}"
    return place.unavailable() or place.refuses(subject, dtype) or ""


def calls(subject: Subject) -> tuple[bool, ...]:
    """Return whether calls ask for gradients: both kinds, where there are both."""
    return (False, True) if subject.differentiable and op(subject.op).differentiable else (False,)


def case_at(subject: Subject, dtype: str, rows: int, columns: int, values: Values) -> Case | None:
    """Return a case of a shape in contiguous memory, or None where the subject has none."""
    known = op(subject.op)
    recipe = recorded_recipe(known, subject, rows, columns, values)
    return build(known, subject, dtype, recipe, gradients=True)


@dataclass(frozen=True, kw_only=True)
class _Asker:
    """Asks for the certificates of one case, and tries to contradict those that are given."""

    subject: Subject
    case: Case
    runner: Runner
    seed: int = 0

    def asked(self, *, gradients: bool) -> AskedCertificate:
        """Ask for one certificate."""
        found = certified(self.subject, self.case, runner=self.runner, gradients=gradients)
        one = AskedCertificate(
            subject=self.subject.name,
            path=str(self.subject.path),
            dtype=self.case.dtype,
            rows=self.case.rows,
            columns=self.case.columns,
            gradients=gradients,
            found=found,
        )
        if not isinstance(found, Certificate):
            return one
        why, contradicted = self.definition(found, gradients=gradients)
        if contradicted:
            return replace(one, contradicted=contradicted)
        return replace(one, found=Refusal(stage=DEFINITION, why=why)) if why else self._held_against(one)

    def _held_against(self, one: AskedCertificate) -> AskedCertificate:
        """Judge cases of the same layout: none may fail."""
        name = "gradient" if one.gradients or "output" not in op(self.subject.op).outputs else "forward_error"
        judged = 0
        for hazard, strength in TRIED:
            values = Values(hazard=hazard, strength=strength, seed=self.seed + 1)
            case = case_at(self.subject, one.dtype, one.rows, one.columns, values)
            if case is None:
                continue
            trial = Trial(subject=self.subject, check_name=name, dtype=one.dtype, runner=self.runner)
            outcomes, _ = trial.judge(case)
            bad = next((o for o in outcomes if trial.is_finding(case, o)), None)
            if bad is not None and bad.output == "declaration":
                return replace(one, found=Refusal(stage=DECLARED, why=bad.message))
            if bad is not None and bad.verdict in {Verdict.FAIL, Verdict.CRASH}:
                return replace(one, contradicted=f"{_told(name, bad)} (hazard {hazard})")
            judged += any(o.verdict is Verdict.PASS for o in outcomes)
        return replace(one, judged=judged)

    @cached_property
    def formula(self) -> list[Outcome]:
        """What the check of the formula says of the case, gradients included."""
        trial = Trial(subject=self.subject, check_name=FORMULA, dtype=self.case.dtype, runner=self.runner)
        return trial.judge(self.case)[0]

    @property
    def _form_is_ours(self) -> bool:
        the_op = op(self.subject.op)
        return the_op.form(self.subject.claim, self.case.dtype) in the_op.forms.values()

    def definition(self, found: Certificate, *, gradients: bool) -> tuple[str, str]:
        """Return why the declared form is not shown to be the definition of the op; then what contradicts it.

        A form of the op's own that is certified and fails is a contradiction; one of the user's is wrong.
        """
        subject, the_op = self.subject, op(self.subject.op)
        if why := check(FORMULA).skips(subject, the_op, self.case.dtype, PLACE):
            return why, ""
        bad = next((o for o in self.formula if o.verdict is not Verdict.PASS), None)
        if bad is not None:
            # A call that fails otherwise, as without a backward pass, speaks of no result that is certified.
            own = bad.verdict is Verdict.FAIL and bad.output in found.outputs and self._form_is_ours
            return bad.message or str(bad.verdict), _told(FORMULA, bad) if own else ""
        compared = {name for o in self.formula if isinstance(o.evidence, tuple) for name in o.evidence}
        demanded = {"output", *(gradient_names(subject, the_op) if gradients else ())}
        left = sorted((demanded & {*found.outputs}) - compared)
        return (f"{', '.join(left)} was not compared in a field" if left else ""), ""


def _largest(case: Case) -> float:
    """Return the largest magnitude of an element of an argument."""
    given = [tensor.double().abs().max() for tensor in case.given.values() if tensor.numel()]
    return max((float(found) for found in given), default=0.0)


def _told(name: str, outcome: Outcome) -> str:
    return f"{name}: {outcome.verdict} {outcome.message}".strip()


def contradicted_findings(findings: Iterable[Finding]) -> Iterator[AskedCertificate]:
    """Yield a certificate for each finding whose very case is certified: both cannot be right.

    Asked are findings on the machine of the checks whose demands a certificate proves.
    """
    about = [f for f in findings if f.backend == PLACE and f.check in CONTRADICTED]
    for finding in about:
        if finding.verdict is not Verdict.FAIL or finding.outcome.output == "declaration":
            continue
        subject = load_subject(finding.path, finding.subject)
        gradients = True in calls(subject) and finding.check != "forward_error"
        with Runner(PLACE) as runner:
            subject = claimed_at(subject, finding.case, runner, gradients=gradients)
            found = certified(subject, finding.case, runner=runner, gradients=gradients)
            if not isinstance(found, Certificate) or not found.speaks_of(_largest(finding.case)):
                continue
            asker = _Asker(subject=subject, case=finding.case, runner=runner)
            why, contradicted = asker.definition(found, gradients=gradients)
        if why and not contradicted:
            continue  # the form that is declared is a wrong one: certificate and finding may both be right
        yield AskedCertificate(
            subject=finding.subject,
            path=finding.path,
            dtype=finding.dtype,
            rows=finding.case.rows,
            columns=finding.case.columns,
            gradients=gradients,
            found=found,
            contradicted=_told(finding.check, finding.outcome),
        )
