"""Ask for certificates of kernels with planted faults: none is to be certified where it is wrong.

    python benchmarks/faulty_certificates.py [--rows 3] [--columns 33] [--part NAME ...] [--failing]

Each faulty kernel in Triton or CUDA of tests/faulty_kernels is asked for a certificate at one shape, forward
and with gradients. A certificate speaks of that call alone; so of each that is given, the checks of outputs
and gradients judge cases of the same shape, layout and arguments with other numbers, near zero and far from
it. A finding there is an error of the certificate. Prints a table, and exits with 1 if there is one.

With --failing each is asked at the smallest case that is found of the check that its docstring names: where
it fails. What fails may be another call than the plain one of that case, of which a certificate speaks: under
autocast, after others, with a tensor that the check makes of the case. So the plain call is judged as well,
and a certificate is an error where that is wrong, or where the check finds what certificates exclude. Where a
mode or a number of multiprocessors makes it fail, each is asked as well of a copy of the kernel that enters
the mode, and of a machine with so many.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from verifier.audit import shrink
from verifier.audit.budget import Budget
from verifier.audit.certifying import CONTRADICTED, calls
from verifier.audit.examination import Examination
from verifier.audit.rules import outside, unexpected
from verifier.audit.source_names import near_subject
from verifier.audit.trial import Failure
from verifier.checks import check
from verifier.checks.support.certificate_at_shape import certified
from verifier.commands.explain import case_for
from verifier.execution import Runner
from verifier.ops import op
from verifier.records.case import Case
from verifier.records.certificate import Certificate, Refusal
from verifier.records.subject import Subject
from verifier.records.verdict import Finding, Verdict
from verifier.subjects.load_file import load_subjects

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "faulty_kernels"
KAPPAS = (0.0, 10.0, 1e3)
"""Standard deviations that rows lie from zero."""
SEEDS = 5
LANGUAGES = ("triton", "cuda")
CASES = 15
"""Of a search: enough to show each bug, as the tests of these kernels demand."""
PLACE = "machine"
SECONDS = 300.0
"""Of one execution."""
MOST = 2**19
"""Elements of a case that is recorded, at most."""
MODES = {
    "under torch.no_grad": "@torch.no_grad()",
    "under torch.autocast": '@torch.autocast("cuda", dtype=torch.float16)',
}
"""What makes a wrapper enter the mode in which it is found to be wrong."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What is said of one kernel: a certificate's claims or why there is none; cases judged wrong."""

    name: str
    gradients: bool
    said: str
    given: bool
    judged: int = 0
    wrong: int = 0


@dataclass(frozen=True, kw_only=True)
class AtFailing:
    """What is said of one kernel where it fails.

    said: a certificate's claims, or why there is none. error: the certificate speaks of what is wrong.
    plain: what the check of results finds of this call, or why it is none of those that are certified.
    """

    said: str
    given: bool
    plain: str = ""
    error: bool = False


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call at which a certificate is asked: by a subject, on a machine with these options."""

    subject: Subject
    gradients: bool
    told: str
    options: Mapping[str, object] = field(default_factory=dict)


def kernels(parts: Sequence[str]) -> Iterator[tuple[Subject, str]]:
    """Yield the faulty kernels that are compiled, each with what its docstring says is wrong."""
    for path in sorted(path for path in FOLDER.glob("*.py") if any(part in path.stem for part in parts)):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        for subject in load_subjects(path):
            if subject.language in LANGUAGES:
                yield subject, text.partition("\n")[0]


def named_check(fault: str) -> str:
    """Return the check that is to catch a fault, by its line of the docstring."""
    found = re.search(r"(\w+) must catch it", fault)
    assert found, fault
    return found[1]


def failing(subject: Subject, name: str, runner: Runner) -> Finding | None:
    """Return the smallest failure that a check finds, in the first dtype in which it finds one."""
    for dtype in subject.dtypes:
        budget = Budget(cases=CASES, findings=1)
        examination = Examination(
            subject=subject, check_name=name, dtype=dtype, runner=runner, budget=budget, shrinks=False
        )
        for found in unexpected(examination.run().findings):
            failure = Failure(case=found.case, outcome=found.outcome, detail=found.detail)
            return examination.finding(shrink.shrunk(examination, failure, lambda _: False))
    return None


def calls_at(subject: Subject, finding: Finding, folder: Path) -> Iterator[Call]:
    """Yield the plain calls at the case of a finding, and what makes it fail as a call of its own.

    folder: where a copy of the kernel is written that enters a mode.
    """
    forward, *backward = calls(subject)
    plan = check(finding.check).plan(subject, op(subject.op))
    for gradients in (forward, *(backward if plan.gradients else ())):
        told = "with gradients" if gradients else "forward"
        yield Call(subject=subject, gradients=gradients, told=told)
        if played := re.search(r"with (\d+) multiprocessors?", finding.outcome.message):
            options = {"multiprocessors": int(played[1])}
            yield Call(subject=subject, gradients=gradients, told=f"{told}, {played[0]}", options=options)
    for words, entered in MODES.items():
        if words in finding.outcome.message:
            path = folder / subject.path.name
            text, line = subject.path.read_text(encoding="utf-8"), f"\ndef {subject.name}("
            assert text.count(line) == 1, subject.path
            path.write_text(text.replace(line, f"\n{entered}{line}"), encoding="utf-8")
            (moved,) = load_subjects(path)
            yield Call(subject=moved, gradients=False, told=f"forward, {words}")


def asked_at(call: Call, finding: Finding) -> AtFailing:
    """Ask for a certificate at the case of a finding, and judge the same call if there is one.

    In processes of their own: what earlier calls have left is not there.
    """
    case, subject, gradients = finding.case, call.subject, call.gradients
    if case.elements > MOST:
        return AtFailing(said=f"not asked: {case.elements} elements", given=False)
    with Runner(PLACE, case_seconds=SECONDS, options=call.options) as runner:
        found = certified(subject, case, runner=runner, gradients=gradients)
    if not isinstance(found, Certificate):
        return AtFailing(said=_refused(subject, found), given=False)
    if not (_finite(case) and found.speaks_of(_largest(case))):
        return AtFailing(said=_claims(found), given=True, plain="it speaks of no argument that is infinite")
    about = "gradient" if gradients else "forward_error"
    with Runner(PLACE, case_seconds=SECONDS, options=call.options) as runner:
        judging = Examination(subject=subject, check_name=about, dtype=case.dtype, runner=runner)
        verdicts = {one.verdict for one in judging.judge(case)[0]}
    # What is found of no result may lie in the backward pass, of which a forward call says nothing.
    whole = gradients or not any(calls(subject))
    excluded = finding.check in CONTRADICTED and (whole or finding.outcome.output in found.outputs)
    return AtFailing(
        said=_claims(found),
        given=True,
        plain=f"the call: {', '.join(sorted(map(str, verdicts)))}",
        error=bool(verdicts & {Verdict.FAIL, Verdict.CRASH}) or excluded,
    )


def _finite(case: Case) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in case.given.values())


def _largest(case: Case) -> float:
    return max((float(t.double().abs().max()) for t in case.given.values() if t.numel()), default=0.0)


def _refused(subject: Subject, found: Refusal) -> str:
    return near_subject(f"{found.stage}: {found.why}", subject.path)


def _claims(found: Certificate) -> str:
    return ", ".join(sorted({proof.claims for proof in found.proofs}))


def asked(subject: Subject, rows: int, columns: int, runner: Runner, *, gradients: bool) -> Answer:
    """Ask for one certificate, and judge what is certified."""
    case = case_for(subject, subject.dtypes[0], rows, columns, 0.0, 0, recorded=True)
    found = certified(subject, case, runner=runner, gradients=gradients)
    if not isinstance(found, Certificate):
        why = _refused(subject, found)
        return Answer(name=subject.name, gradients=gradients, said=why, given=False)
    judged = wrong = 0
    about = "gradient" if gradients else "forward_error"
    examination = Examination(subject=subject, check_name=about, dtype=case.dtype, runner=runner)
    for like in _alike(subject, case):
        outcomes, _ = examination.judge(like)
        judged += any(one.verdict in {Verdict.PASS, Verdict.FAIL} for one in outcomes)
        wrong += any(one.verdict is Verdict.FAIL for one in outcomes)
    return Answer(
        name=subject.name, gradients=gradients, said=_claims(found), given=True, judged=judged, wrong=wrong
    )


def _alike(subject: Subject, case: Case) -> Iterator[Case]:
    """Yield cases of the same shape, layout and arguments with other numbers."""
    for kappa in KAPPAS:
        for seed in range(1, SEEDS + 1):
            like = case_for(subject, case.dtype, case.rows, case.columns, kappa, seed, recorded=True)
            if not outside(subject, like):
                yield like


def at_one_shape(parts: Sequence[str], shape: tuple[int, int], runner: Runner) -> int:
    """Print the table of certificates at one shape; return how many are wrong."""
    errors = 0
    _print_row("kernel", "what is wrong", "pass", "certificate")
    _print_row(*["---"] * 4)
    for subject, fault in kernels(parts):
        for gradients in calls(subject):
            found = asked(subject, *shape, runner, gradients=gradients)
            errors += found.wrong
            told = f"refused, {found.said}"
            if found.given:
                told = f"**{found.said}**, {found.judged} cases right"
                told = told if not found.wrong else f"**WRONG** in {found.wrong} of {found.judged} cases"
            _print_row(f"`{found.name}`", fault, "with gradients" if gradients else "forward", told)
    return errors


def where_they_fail(parts: Sequence[str], runner: Runner) -> int:
    """Print the table of certificates where kernels fail; return how many are wrong."""
    errors = 0
    _print_row("kernel", "check", "call", "what is found there", "pass", "certificate")
    _print_row(*["---"] * 6)
    for subject, fault in kernels(parts):
        name = named_check(fault)
        started = time.monotonic()
        finding = failing(subject, name, runner)
        if finding is None:
            _print_row(f"`{subject.name}`", name, "", "no finding", "", "")
            continue
        _print_seconds(subject.name, "searched", started)
        case = finding.case
        call = f"{case.rows} x {case.columns} {case.dtype}"
        call += "".join(f", {n} {layout}" for n, layout in sorted(case.layouts.items()))
        outcome = finding.outcome
        told_of = "" if outcome.message.startswith(outcome.output) else f"{outcome.output}: "
        message = near_subject(f"{told_of}{outcome.message}", subject.path)
        with TemporaryDirectory() as folder:
            for one in calls_at(subject, finding, Path(folder)):
                started = time.monotonic()
                found = asked_at(one, finding)
                errors += found.error
                told = f"refused, {found.said}"
                if found.given:
                    told = f"**{found.said}**; {found.plain}"
                    told = told if not found.error else f"**WRONG**, certified {told}"
                _print_seconds(subject.name, "asked", started)
                _print_row(f"`{subject.name}`", name, call, message, one.told, told)
    return errors


def _print_row(*cells: str) -> None:
    print("| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |", flush=True)


def _print_seconds(name: str, what: str, started: float) -> None:
    print(f"{name} {what}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def main() -> int:
    """Print the table; 1 if a certified kernel is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=3)
    parser.add_argument("--columns", type=int, default=33)
    parser.add_argument("--part", nargs="+", default=[""])
    parser.add_argument("--failing", action="store_true")
    arguments = parser.parse_args()
    with Runner(PLACE, case_seconds=SECONDS) as runner:
        if arguments.failing:
            return int(where_they_fail(arguments.part, runner) > 0)
        return int(at_one_shape(arguments.part, (arguments.rows, arguments.columns), runner) > 0)


if __name__ == "__main__":
    sys.exit(main())
