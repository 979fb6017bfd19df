"""Judges elements that no rounding touches and that may be no numbers: what is masked out, say."""

from __future__ import annotations

import numpy as np

from verifier.arithmetic.formats import FORMATS
from verifier.checks.support.output_verdict import format_of
from verifier.checks.support.session import Session
from verifier.ops.rows.compose_bounds import to_float64
from verifier.records.observation import Observation
from verifier.records.verdict import Outcome, Verdict


def certain_values(session: Session, seen: Observation, names: tuple[str, ...]) -> list[Outcome]:
    """Return an outcome for each thing that the op knows of the named results for certain."""
    case, outcomes = session.case, []
    for name, (words, where, meets) in session.op.certain(case, session.subject.claim):
        actual = seen.outputs.get(name) if name in names else None
        if actual is None or actual.numel() != case.elements or format_of(actual) not in FORMATS:
            continue
        if not where.any():
            continue
        values = session.op.canonical(case, name, to_float64(actual))
        bad = where & ~meets(values)
        text = ""
        if bad.any():
            row, column = (int(i[0]) for i in np.nonzero(bad))
            count = f"{int(bad.sum())} of {int(where.sum())} such elements differ"
            text = (
                f"{name}: {words}; {count}, first row {row}, column {column}: {float(values[row, column])!r}"
            )
        outcomes.append(
            Outcome(
                verdict=Verdict.FAIL if text else Verdict.PASS,
                output=name,
                message=text,
                decided=int(where.sum()),
                wrong=int(bad.sum()),
                meaning=MEANING if text else "",
            )
        )
    return outcomes


MEANING = "kernel or declaration wrong: no rounding is involved"
