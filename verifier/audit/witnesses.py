"""Replays the witnesses of declared known defects: each is expected to fail as its file says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from verifier.audit import rules, tally
from verifier.audit.trial import Failure, Trial
from verifier.cases.recipe import with_own_default
from verifier.records import witness
from verifier.records.case import CaseError
from verifier.records.subject import KnownDefect
from verifier.records.verdict import FailureKey, Finding, Line, Outcome, Verdict


def replay_witnesses(trial: Trial, line: Line) -> None:
    """Run the witness of every known defect of the check; findings and notes go to the line."""
    subject, dtype = trial.subject, trial.dtype
    for defect in (d for d in subject.known_defects if d.check == trial.check_name and d.of_this_version):
        if not defect.observable(trial.runner.backend, dtype):
            line.notes.append(f"known defect not observable here: {defect.reason}")
            continue
        try:
            path = witness.stored(subject, defect, dtype)
            if path is None:
                line.notes.append(f"known defect without a witness for this dtype: {defect.reason}")
                continue
            replayed = _replayed(trial, line, defect, path)
        except CaseError as error:
            line.notes.append(f"known defect with a witness that is damaged: {error}")
            continue
        if replayed is not None:
            line.findings.append(replayed)


def _replayed(trial: Trial, line: Line, defect: KnownDefect, path: Path) -> Finding | None:
    """Run a witness: passing or failing otherwise than its file says is news.

    On another backend it is noted alone: what memory held before or the order of blocks is another there.
    """
    saved, document = witness.load(path)
    case = with_own_default(trial.op, trial.subject, saved)
    outcomes, detail = trial.judge(case)
    tally.add(line, case, outcomes, outside=False, detail=detail)
    found = [Failure(case=case, outcome=o, detail=detail) for o in outcomes if trial.is_finding(case, o)]
    origin = document.get("backend")
    elsewhere = origin != trial.runner.backend
    alike = next((f for f in found if str(f.key) == document.get("failure")), None)
    if alike is None and elsewhere:
        wanted = FailureKey.read(str(document.get("failure")))
        alike = next((f for f in found if rules.akin(wanted, f.outcome)), None)
        if alike is not None:
            line.notes.append(f"known defect seen otherwise than on {origin}: {defect.reason}")
    if alike is not None and document.get("check") == defect.check:
        return replace(trial.finding(alike), expected=True, reason=defect.reason, file=str(path))
    if found:
        return trial.finding(_otherwise(found[0], defect, path, document))
    if elsewhere:
        line.notes.append(f"known defect not shown here by its witness of {origin}: {defect.reason}")
        return None
    text = f"known defect no longer found: {defect.reason} (its witness passes)"
    return trial.finding(Failure(case=case, outcome=Outcome(verdict=Verdict.FAIL, message=text)))


def _otherwise(failure: Failure, defect: KnownDefect, path: Path, document: Mapping[str, object]) -> Failure:
    """Say of a failure that it is not the one that the file of the witness expects."""
    text = f"the witness of a known defect ({defect.reason}) fails otherwise: {failure.outcome.message}"
    text += (
        f" (its file {path.name} expects {document.get('failure') or 'nothing'} of {document.get('check')})"
    )
    return replace(failure, outcome=replace(failure.outcome, message=text))
