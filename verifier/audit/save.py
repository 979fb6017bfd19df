"""Writes the cases of findings to files, each once, so that anyone can replay them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path

from verifier.audit.record import Report
from verifier.audit.report.json_frame import versions
from verifier.audit.rules import failure_key
from verifier.records import case as cases
from verifier.records.files import reason, write_text
from verifier.records.printable import block
from verifier.records.verdict import Finding, Line
from verifier.subjects.libraries import distributions_of

NAME_BYTES = 180
"""Of what a case's file is named after: the rest of the name fits into the 255 bytes that systems allow."""


def save_findings(report: Report, folder: Path) -> None:
    """Save the case of every unexpected finding and note the file in the report."""
    for line in report.lines:
        save_line(line, folder)


def save_line(line: Line, folder: Path) -> None:
    """Save the case of every unexpected finding of one line and note the file in it, or why there is none."""
    line.findings = [f if f.expected or f.file else saved(f, folder) for f in line.findings]


def saved(finding: Finding, folder: Path) -> Finding:
    """Save the case of a finding; return it with the name of the file, or with why there is none."""
    try:
        return replace(finding, file=str(save_finding(finding, folder)), unwritten="")
    except OSError as error:
        return replace(finding, unwritten=f"{folder}: {reason(error)}")


def save_finding(finding: Finding, folder: Path, **facts: object) -> Path:
    """Write one finding's case with everything needed to replay it; returns the file.

    The same finding found again has the same name: it replaces the old one. Subjects of the same
    name in two files have findings of their own.

    Raises:
        OSError: the file cannot be written.

    """
    parts = (finding.subject, finding.check, finding.dtype, finding.backend, finding.outcome.output or "case")
    words = finding.outcome.message.split(":")[-1]
    letters = "".join(c for c in words if c.isalpha())
    mark = hashlib.sha256(f"{finding.path}|{letters}".encode()).hexdigest()[:6]
    path = folder / f"{file_name('-'.join(parts))}-{mark}.json"
    make_ignored(folder)
    kernel = Path(finding.path)
    cases.save(
        finding.case,
        path,
        subject={
            "path": finding.path,
            "name": finding.subject,
            "sha256": hashlib.sha256(kernel.read_bytes()).hexdigest() if kernel.is_file() else "",
        },
        check=finding.check,
        backend=finding.backend,
        verdict=str(finding.verdict),
        failure=str(failure_key(finding.outcome)),
        message=finding.outcome.message,
        declaration=block(finding.declaration),
        versions=versions(*distributions_of(kernel)),
        **({"multiprocessors": finding.multiprocessors} if finding.multiprocessors else {}),
        **facts,
    )
    return path


def make_ignored(folder: Path) -> None:
    """Make the folder if there is none, with a file by which git leaves all of it alone."""
    if not folder.exists():
        folder.mkdir(parents=True)
        write_text(folder / ".gitignore", "*\n")


def file_name(text: str) -> str:
    """Return text as a part of a file's name; what had to be changed (../../etc) is told apart by a hash."""
    name = re.sub(r"[^\w.-]", "_", text).lstrip(".-").encode()[:NAME_BYTES].decode(errors="ignore")
    return name if name == text else f"{name}-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:6]}"
