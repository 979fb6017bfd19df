"""Finds the smallest case for every declared known defect of the kernels and stores it as its witness.

Run from a checkout: `python tests/quality/make_witnesses.py [KERNEL.py ...]`. Existing witnesses that still
fail are kept; `--again` makes all of them anew. A defect that the search does not find is reported.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from verifier import case as cases
from verifier.audit import versions
from verifier.backends import backend, default_backend
from verifier.case import Case
from verifier.checks import checks
from verifier.examine import Budget, Examination
from verifier.loading import builtin_files, load_subjects
from verifier.runner import Runner
from verifier.subjects import KnownDefect, Subject
from verifier.verdicts import Outcome, failure_key

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
            if place is None or not subject.known_defects:
                continue
            with Runner(place) as runner:
                for defect in subject.known_defects:
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
        path = subject.witness_file(defect, dtype)
        examination = Examination(
            subject=subject,
            check_name=defect.check,
            dtype=dtype,
            runner=runner,
            budget=Budget(cases=SEARCH_CASES, findings=1),
            ignore_known=True,
        )
        if path.is_file() and not again and (kept := still_fails(examination, path)):
            add_what_is_seen(path, *kept)
            found = True
            continue
        tries = predicates(subject, defect, runner.backend, dtype)
        searches = (replace(examination, only=only).run().findings for only in tries)
        findings = next((found for found in searches if found), [])
        if not findings:
            print(f"NOT FOUND  {subject.name} {defect.check} {dtype}: {defect.reason}", flush=True)
            continue
        found = True
        store(path, subject, findings[0], runner.backend)
        print(f"found      {path.name}: {findings[0].outcome.message}", flush=True)
    return found


def still_fails(examination: Examination, path: Path) -> tuple[Outcome, str] | None:
    """Return the failure of a stored witness, with its traceback, if it is what its file says."""
    case, document = cases.load(path)
    outcomes, detail = examination.judge(case)
    found = [o for o in outcomes if examination.is_finding(case, o)]
    alike = next((o for o in found if failure_key(o) == document.get("failure")), None)
    return None if alike is None else (alike, detail)


def add_what_is_seen(path: Path, outcome: Outcome, detail: str) -> None:
    """Complete a witness of an earlier version of this script."""
    document = json.loads(path.read_text(encoding="utf-8"))
    if "seen" not in document:
        document["seen"] = what_is_seen(outcome, detail)
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


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


def store(path: Path, subject: Subject, finding: object, place: str) -> None:
    """Write the case without anything that belongs to this machine."""
    document = cases.to_document(finding.case)
    document |= {
        "subject": {
            "path": f"../{subject.path.name}",
            "name": subject.name,
            "sha256": hashlib.sha256(subject.path.read_bytes()).hexdigest(),
        },
        "check": finding.check,
        "backend": place,
        "failure": failure_key(finding.outcome),
        "message": finding.outcome.message.replace(f"{subject.path.parent}/", ""),
        "seen": what_is_seen(finding.outcome, finding.detail),
        "versions": versions(),
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
