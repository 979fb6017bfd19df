"""Runs one saved case again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from verifier.audit import causes, rules
from verifier.audit.examination import Examination
from verifier.audit.read_claim import with_read_claim
from verifier.audit.report.finding_text import failure_text
from verifier.audit.request import SelectionError
from verifier.audit.run_audit import played
from verifier.cases.recipe import with_own_default
from verifier.cases.saved_case import read_case
from verifier.checks import check
from verifier.execution import Runner
from verifier.execution.backends import backend
from verifier.execution.trial_import import try_out
from verifier.ops import op
from verifier.records import case as cases
from verifier.records.printable import said
from verifier.records.subject import Subject
from verifier.records.verdict import Outcome, Verdict
from verifier.subjects.load_file import load_subjects


def replay(path: Path, *, kernel: Path | None = None, backend_name: str | None = None) -> tuple[str, int]:
    """Run the check of a saved case on its subject; return the report and the exit status.

    The status is 1 if the case still fails, 0 if it passes, 3 if nothing about it is decided,
    4 if the verifier itself failed.

    Raises:
        CaseError: the file is not a case, or does not say what to run.
        SelectionError: its subject, check or backend does not exist here.
        LoadError: the kernel file does not load.

    """
    saved = read_case(path, kernel)
    case, document, file, name = saved.case, saved.document, saved.kernel, saved.subject
    try:
        check_name, place = document["check"], backend_name or document["backend"]
        check(check_name), backend(place)
    except (LookupError, TypeError) as error:
        raise cases.CaseError(f"{path}: does not say which check it belongs to ({said(error)})") from error
    try_out(file)
    found = {s.name: s for s in load_subjects(file)}
    if name not in found:
        raise SelectionError(f"{file} has no subject {name!r}; it has {', '.join(found)}")
    case = with_own_default(op(case.op), found[name], case)
    reason = _cannot_run(found[name], case, check_name, place)
    if reason:
        raise SelectionError(reason)
    with Runner(place, options=played(place, _multiprocessors(path, document))) as runner:
        examination = Examination(
            subject=with_read_claim(found[name], runner, case.dtype),
            check_name=check_name,
            dtype=case.dtype,
            runner=runner,
            ignore_known=True,
        )
        finding, outcomes = examination.examine_case(case)
        if finding is not None:
            finding = causes.explained(examination, finding)
    status = rules.replay_status(finding, outcomes)
    if finding is not None:
        return _changed(file, document) + failure_text(finding), status
    verdicts = ", ".join(_words(o) for o in outcomes) or "nothing to compare"
    text = f"{name} {check_name} {case.dtype} on {place}: {verdicts}"
    return _changed(file, document) + text, status


def _multiprocessors(path: Path, document: Mapping[str, object]) -> int:
    number = document.get("multiprocessors", 0)
    if not isinstance(number, int) or number < 0:
        raise cases.CaseError(f"{path}: multiprocessors is {number!r}, and a whole number is wanted")
    return number


def _words(outcome: Outcome) -> str:
    """Return a verdict, with the reason where it is not about the subject."""
    told = outcome.verdict in {Verdict.UNDECIDED, Verdict.ERROR} and outcome.message
    return f"{outcome.output or 'case'}: {outcome.verdict}" + (f" ({outcome.message})" if told else "")


def _cannot_run(subject: Subject, case: cases.Case, check_name: str, place: str) -> str | None:
    """Return why the verdict on this case would mean nothing here, or None."""
    if case.op != subject.op:
        return f"the case is one of {case.op}, but {subject.name} declares {subject.op}"
    if case.dtype not in subject.dtypes:
        return f"{subject.name} does not declare {case.dtype}"
    there = backend(place)
    missing = there.unavailable()
    if missing:
        return f"backend {place!r} cannot be used here: {missing}"
    if subject.language not in there.languages:
        return f"backend {place} does not run subjects in {subject.language}"
    refusal = there.refuses(subject, case.dtype)
    skips = check(check_name).skips(subject, op(subject.op), case.dtype, place)
    return refusal or skips or None


def _changed(file: Path, document: dict[str, object]) -> str:
    subject = document.get("subject")
    saved = subject.get("sha256") if isinstance(subject, dict) else None
    if not saved or hashlib.sha256(file.read_bytes()).hexdigest() == saved:
        return ""
    return f"note: {file.name} has changed since this case was saved\n"
