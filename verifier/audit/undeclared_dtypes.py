"""Which dtypes a kernel takes whose declaration names none: those of which it refuses no ordinary case."""

from __future__ import annotations

from strategies.values import Values
from verifier.cases.recipe import Recipe, build
from verifier.execution import Runner
from verifier.ops import op
from verifier.records.subject import Subject

LEFT_OUT = "dtypes"
ROWS, COLUMNS = 2, 128

_refused: dict[tuple[str, str, str, str], str] = {}
"""What this process has seen, by file, subject, dtype and backend."""


def refused(subject: Subject, runner: Runner, dtype: str) -> str:
    """Return why a dtype is none of the subject's, where its declaration names none; or nothing."""
    if LEFT_OUT not in subject.claim.assumed:
        return ""
    key = (str(subject.path), subject.name, dtype, runner.backend)
    if key not in _refused:
        _refused[key] = _seen(subject, runner, dtype)
    return _refused[key]


def _seen(subject: Subject, runner: Runner, dtype: str) -> str:
    recipe = Recipe(rows=ROWS, columns=COLUMNS, weight=Values(seed=1), bias=Values(seed=2))
    case = build(op(subject.op), subject, dtype, recipe, gradients=False)
    if case is None:
        return ""
    with Runner(runner.backend, options=runner.options) as own:  # the audit's tells its lines what has run
        seen = own.run(subject, case, gradients=False)
    said = f"its declaration names no dtypes, and it refuses {dtype}: {seen.message}"
    return said if seen.status == "refused" else ""
