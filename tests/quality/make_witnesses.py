"""Finds the smallest case for every declared known defect of the kernels and stores it as its witness.

Run from a checkout: `python tests/quality/make_witnesses.py [KERNEL.py ...]`. Existing witnesses that still
fail are kept; `--again` makes all of them anew. A defect that the search does not find is reported.
"""

from __future__ import annotations

import argparse
import math
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from verifier.audit.budget import Budget
from verifier.audit.examination import Examination
from verifier.audit.report.json_frame import versions
from verifier.audit.rules import failure_key
from verifier.checks import checks
from verifier.execution import Runner
from verifier.execution.backends import backend, default_backend
from verifier.records import case as cases
from verifier.records import witness
from verifier.records.case import Case
from verifier.records.subject import KnownDefect, Subject
from verifier.records.verdict import Finding, Outcome
from verifier.subjects.libraries import distributions_of
from verifier.subjects.load_file import builtin_files, load_subjects

SEARCH_CASES = 200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernels", nargs="*", type=Path)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--backend")
    options = parser.parse_args()
    missing = 0
    for file in options.kernels or builtin_files():
        for subject in load_subjects(file):
            place = options.backend or default_backend(subject)[0]
            present = [defect for defect in subject.known_defects if defect.of_this_version]
            if place is None or not present:
                continue
            with Runner(place) as runner:
                for defect in present:
                    missing += not make(subject, defect, runner, again=options.again)
    return 1 if missing else 0


def make(subject: Subject, defect: KnownDefect, runner: Runner, *, again: bool) -> bool:
    """Store a witness for each dtype in which the defect is found; return whether there is at least one."""
    found = False
    if defect.check not in checks():
        print(f"NO CHECK   {subject.name} {defect.check}: {defect.reason}", flush=True)
        return False
    for dtype in subject.dtypes:
        if not defect.observable(runner.backend, dtype) or backend(runner.backend).refuses(subject, dtype):
            continue
        examination = Examination(
            subject=subject,
            check_name=defect.check,
            dtype=dtype,
            runner=runner,
            budget=Budget(cases=SEARCH_CASES, findings=1),
            ignore_known=True,
        )
        path = witness.stored(subject, defect, dtype)
        if path is not None and not again and still_fails(examination, path):
            found = True
            continue
        tries = predicates(subject, defect, runner.backend, dtype)
        searches = (replace(examination, only=only).run().findings for only in tries)
        findings = next((found for found in searches if found), [])
        if not findings:
            print(f"NOT FOUND  {subject.name} {defect.check} {dtype}: {defect.reason}", flush=True)
            continue
        found = True
        store(subject, defect, findings[0])
        name = witness.name_of(defect, dtype)
        print(f"found      {subject.name} {name}: {findings[0].outcome.message}", flush=True)
    return found


def still_fails(examination: Examination, path: Path) -> bool:
    """Return whether a stored witness fails as its document says."""
    case, document = witness.load(path)
    outcomes, _ = examination.judge(case)
    found = [o for o in outcomes if examination.is_finding(case, o)]
    return any(str(failure_key(o)) == document.get("failure") for o in found)


def what_is_seen(outcome: Outcome, detail: str) -> str:
    """Return the numbers of the worst element, or an exception's last words where its first say nothing."""
    worst = outcome.worst
    if worst is not None:
        place = ", ".join(map(str, worst.index))
        bound = "" if math.isnan(worst.bound) else f", proved bound {worst.bound:.3g}"
        return f"{worst.output}[{place}] is {worst.actual:.9g}, exactly {worst.expected:.9g}{bound}"
    return detail.strip().split("\n")[-1].strip() if outcome.message.endswith(":") else ""


def alone(defect: KnownDefect, others: list[KnownDefect]) -> Callable[[Case], bool]:
    """Return a predicate of cases that show this defect and none of the others."""
    elsewhere = [d.where for d in others if d.where is not None and d.where is not defect.where]

    def only(case: Case) -> bool:
        shown = defect.where is None or defect.where(case)
        return shown and not any(where(case) for where in elsewhere)

    return only


def predicates(subject: Subject, defect: KnownDefect, place: str, dtype: str) -> list[Callable[[Case], bool]]:
    """Return predicates to try, from the purest case to any that shows the defect."""
    seen = [d for d in subject.known_defects if d.concerns(defect.check) and d.observable(place, dtype)]
    stopping = [d for d in seen if d.check in {"synchronization", "forward_error"}]
    return [alone(defect, seen), alone(defect, stopping), alone(defect, [])]


def store(subject: Subject, defect: KnownDefect, finding: Finding) -> None:
    """Write the case without anything that belongs to this machine, and leave out what nothing declares."""
    file = witness.file_of(subject)
    documents = witness.read(file) if file.is_file() else {}
    told = finding.outcome.message.replace(f"{subject.path.parent}/", "")
    for folder in sorted({sysconfig.get_path("purelib"), *sys.path} - {""}, key=len, reverse=True):
        told = told.replace(f"{folder}/", "")  # packages may lie wherever modules are looked for
    documents[witness.name_of(defect, finding.dtype)] = cases.to_document(finding.case) | {
        "subject": {"path": f"../{subject.path.name}", "name": subject.name},
        "check": finding.check,
        "backend": finding.backend,
        "failure": str(failure_key(finding.outcome)),
        "message": told,
        "seen": what_is_seen(finding.outcome, finding.detail),
        "versions": versions(*distributions_of(subject.path)),
    }
    declared = [witness.name_of(d, dtype) for d in subject.known_defects for dtype in subject.dtypes]
    witness.write(file, {name: documents[name] for name in declared if name in documents})


if __name__ == "__main__":
    raise SystemExit(main())
