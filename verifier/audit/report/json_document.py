"""The report of an audit as JSON data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from verifier.audit.record import Report
from verifier.audit.report.finding_text import (
    PROMISED,
    meaning,
    of_one_cause,
    replay_command,
    tensor_text,
)
from verifier.audit.report.json_frame import frame
from verifier.audit.report.reach_text import reach_document, unmet
from verifier.audit.report.source_line import source_line
from verifier.audit.report.traceback_text import traceback_lines
from verifier.audit.rules import known_alone, line_verdict, unexpected
from verifier.records.printable import block
from verifier.records.verdict import Finding, Line, Variant, Verdict, Worst
from verifier.subjects.libraries import distributions_of


def document(report: Report) -> dict[str, object]:
    """Return everything an audit found as plain JSON data; infinities and NaN become strings.

    Texts are printable and of a size that can be read; paths are as they are, for a program to open.
    """
    short = [unmet(one, report.required_reach or 0.0) for one in report.short_of_reach]
    return frame(
        seed=report.seed,
        budget=report.budget,
        seconds=report.seconds,
        status=report.status,
        interrupted=report.interrupted,
        unreached=report.unreached,
        lines=[_line(line) for line in report.lines],
        findings=_findings(report.findings),
        reach=[reach_document(one) for one in report.reach],
        unusable=report.unusable,
        errors=[block(error) for error in report.errors],
        unmet=[one._asdict() for one in (*short, *report.unmet)],
        certificates=[plain(one.document) for one in report.certificates],
        libraries=[asdict(one) for one in report.libraries],
        packages=list(dict.fromkeys(name for one in report.libraries for name in distributions_of(one.path))),
    )


def _line(line: Line) -> dict[str, object]:
    return {
        "subject": line.subject,
        "check": line.check,
        "dtype": line.dtype,
        "backend": line.backend,
        "variance": line.variance,
        "verdict": str(line_verdict(line)),
        "unexpected": bool(unexpected(line.findings)),
        "known": known_alone(line),
        "counts": {str(verdict): count for verdict, count in line.counts.items()},
        "outside": {str(verdict): count for verdict, count in line.beyond.items()},
        "untried": line.untried,
        "refused": line.gaps.get("refused", []),
        "worst_ulp": plain(line.worst_ulp),
        "worst_row_ulp": plain(line.worst_row_ulp),
        "nonzero_row_ulp": plain(line.nonzero_row_ulp),
        "outputs": {name: _worst(worst) for name, worst in line.outputs.items()},
        "kappa": [plain(k) for k in line.kappa] if line.kappa[0] <= line.kappa[1] else None,
        "no_theorem_from": {name: plain(value) for name, value in line.no_theorem_from.items()},
        "undecided": dict(line.undecided),
        "errors": {block(text): block(detail) for text, detail in line.errors.items()},
        "skipped": block(line.skipped),
        "notes": [block(note) for note in line.notes],
        "trees": [asdict(one) for one in line.trees],
        "seconds": round(line.seconds, 3),
    }


def _worst(worst: Worst) -> dict[str, object]:
    return {name: plain(value) for name, value in asdict(worst).items()}


def _findings(findings: Sequence[Finding]) -> list[dict[str, object]]:
    """Return findings, each with the number of its group: those of one have one cause, as it seems."""
    numbers = {id(one): n for n, group in enumerate(of_one_cause(findings)) for one in group}
    return [_finding(finding, numbers[id(finding)]) for finding in findings]


def _finding(finding: Finding, group: int) -> dict[str, object]:
    outcome, case = finding.outcome, finding.case
    file, line = source_line(finding)
    return {
        "subject": finding.subject,
        "check": finding.check,
        "dtype": finding.dtype,
        "backend": finding.backend,
        "verdict": str(finding.verdict),
        "expected": finding.expected,
        "reason": block(finding.reason),
        "message": outcome.message,
        "worst": _worst(outcome.worst) if outcome.worst else None,
        "cause": finding.cause,
        "group": group,
        "meaning": PROMISED if finding.verdict is Verdict.NO_THEOREM else block(meaning(finding)),
        "source": {"file": str(file), "line": line},
        "raised": [block(text) for text in traceback_lines(finding.detail, Path(finding.path))],
        "variants": [_variant(variant) for variant in finding.variants],
        "declaration": block(finding.declaration),
        "multiprocessors": finding.multiprocessors or None,
        "rows": case.rows,
        "columns": case.columns,
        "kappa": plain(case.kappa),
        "largest": plain(case.largest),
        "hazard": case.hazard,
        "origin": case.origin,
        "arguments": {name: block(repr(value)) for name, value in case.scalars.items()},
        "tensors": {n: None if t is None else tensor_text(case, n) for n, t in case.tensors.items()},
        "replay": replay_command(finding) if finding.file or finding.unwritten else "",
        "case": finding.file,
        "unwritten": finding.unwritten,
    }


def _variant(variant: Variant) -> dict[str, object]:
    return {
        "change": variant.change,
        "verdict": str(variant.verdict),
        "tensor": variant.tensor,
        "strides": list(variant.strides),
        "shows": variant.shows,
    }


def plain(value: object) -> object:
    """Return data as JSON has them: lists for tuples, strings for infinities and NaN."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, tuple | list):
        return [plain(inner) for inner in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value
