"""Ask for certificates of kernels with planted faults: none is to be certified where it is wrong.

    python benchmarks/faulty_certificates.py [--rows 3] [--columns 33] [--part NAME]

Each faulty kernel in Triton or CUDA of tests/faulty_kernels is asked for a certificate at one shape, forward
and with gradients. A certificate speaks of that call alone; so of each that is given, the checks of outputs
and gradients judge cases of the same shape, layout and arguments with other numbers, near zero and far from
it. A finding there is an error of the certificate. Prints a table, and exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from verifier.audit.examination import Examination
from verifier.audit.rules import outside
from verifier.audit.source_names import near_subject
from verifier.checks.support.certificate_at_shape import certified
from verifier.commands.explain import case_for
from verifier.execution import Runner
from verifier.ops import op
from verifier.records.case import Case
from verifier.records.certificate import Certificate
from verifier.records.subject import Subject
from verifier.records.verdict import Verdict
from verifier.subjects.load_file import load_subjects

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "faulty_kernels"
KAPPAS = (0.0, 10.0, 1e3)
"""Standard deviations that rows lie from zero."""
SEEDS = 5
LANGUAGES = ("triton", "cuda")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What is said of one kernel: a certificate's claims or why there is none; cases judged wrong."""

    name: str
    gradients: bool
    said: str
    given: bool
    judged: int = 0
    wrong: int = 0


def kernels(part: str) -> Iterator[tuple[Subject, str]]:
    """Yield the faulty kernels that are compiled, each with what its docstring says is wrong."""
    for path in sorted(path for path in FOLDER.glob("*.py") if part in path.stem):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        for subject in load_subjects(path):
            if subject.language in LANGUAGES:
                yield subject, text.partition("\n")[0]


def asked(subject: Subject, rows: int, columns: int, runner: Runner, *, gradients: bool) -> Answer:
    """Ask for one certificate, and judge what is certified."""
    case = case_for(subject, subject.dtypes[0], rows, columns, 0.0, 0, recorded=True)
    found = certified(subject, case, runner=runner, gradients=gradients)
    if not isinstance(found, Certificate):
        why = near_subject(f"{found.stage}: {found.why}", subject.path)
        return Answer(name=subject.name, gradients=gradients, said=why, given=False)
    judged = wrong = 0
    check = "gradient" if gradients else "forward_error"
    examination = Examination(subject=subject, check_name=check, dtype=case.dtype, runner=runner)
    for like in _alike(subject, case):
        outcomes, _ = examination.judge(like)
        judged += any(one.verdict in {Verdict.PASS, Verdict.FAIL} for one in outcomes)
        wrong += any(one.verdict is Verdict.FAIL for one in outcomes)
    claims = ", ".join(sorted({proof.claims for proof in found.proofs}))
    return Answer(name=subject.name, gradients=gradients, said=claims, given=True, judged=judged, wrong=wrong)


def _alike(subject: Subject, case: Case) -> Iterator[Case]:
    """Yield cases of the same shape, layout and arguments with other numbers."""
    for kappa in KAPPAS:
        for seed in range(1, SEEDS + 1):
            like = case_for(subject, case.dtype, case.rows, case.columns, kappa, seed, recorded=True)
            if not outside(subject, like):
                yield like


def main() -> int:
    """Print the table; 1 if a certified kernel is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=3)
    parser.add_argument("--columns", type=int, default=33)
    parser.add_argument("--part", default="")
    arguments = parser.parse_args()
    errors = 0
    print("| kernel | what is wrong | pass | certificate |\n|---|---|---|---|")
    with Runner("machine", case_seconds=300.0) as runner:
        for subject, fault in kernels(arguments.part):
            differentiable = bool(subject.differentiable and op(subject.op).differentiable)
            for gradients in (False, True) if differentiable else (False,):
                shape = arguments.rows, arguments.columns
                found = asked(subject, *shape, runner, gradients=gradients)
                errors += found.wrong
                told = f"refused, {found.said}"
                if found.given:
                    told = f"**{found.said}**, {found.judged} cases right"
                    told = told if not found.wrong else f"**WRONG** in {found.wrong} of {found.judged} cases"
                cells = f"`{found.name}`", fault, "with gradients" if gradients else "forward", told
                print("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |", flush=True)
    return int(errors > 0)


if __name__ == "__main__":
    sys.exit(main())
