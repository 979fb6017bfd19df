"""Which line of the sources a finding is about: what it names itself, or else where the subject begins."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from verifier.audit.report.finding_text import PLACE
from verifier.audit.report.traceback_text import traceback_lines
from verifier.records.verdict import Finding

_OWN_FRAME = re.compile(r"(?P<file>[^/\\]+):(?P<line>\d+), in ")


def source_line(finding: Finding) -> tuple[Path, int]:
    """Return file and line (from 1) of what a finding is about.

    The place that its message names, the innermost own frame of what was raised, or the subject's function.
    """
    kernel = Path(finding.path)
    named = PLACE.search(finding.outcome.message)
    if named is not None:
        name, _, line = named[1].rpartition(":")
        if (file := _near(kernel, name)) is not None:
            return file, int(line)
    for text in traceback_lines(finding.detail, kernel):
        frame = _OWN_FRAME.match(text)
        if frame is not None and (file := _near(kernel, frame["file"])) is not None:
            return file, int(frame["line"])
    return kernel, line_of_subject(kernel, finding.subject)


def line_of_subject(path: Path, name: str) -> int:
    """Return the line of the function that a subject is; 1 where it cannot be told."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 1
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    own = [node for node in functions if node.name == name]
    own += [node for node in functions if _is_named(node, name)]
    return next((node.lineno for node in own), 1)


def _is_named(node: ast.FunctionDef, name: str) -> bool:
    """Return whether a decorator calls the function by another name."""
    calls = [one for one in node.decorator_list if isinstance(one, ast.Call)]
    given = [k.value for call in calls for k in call.keywords if k.arg == "name"]
    return any(isinstance(value, ast.Constant) and value.value == name for value in given)


def _near(kernel: Path, name: str) -> Path | None:
    """Return a file that a place names by its name or path, if it is there."""
    return next((file for file in (Path(name), kernel.parent / name) if file.is_file()), None)
