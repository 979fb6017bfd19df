"""NaN and infinities stay in their rows and come out as the op's table says; empty inputs too."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from verifier.checks import Session, StoppedError, gradient_names
from verifier.checks.comparing import demanded
from verifier.judge import judge
from verifier.ops import Op
from verifier.ops.rows import case_array, to_float64
from verifier.recipes import Plan
from verifier.runner.observation import Observation
from verifier.subjects import Subject
from verifier.verdicts import Outcome, Verdict

NAME = "special_values"
ORDER = 100
DEMANDS = (
    "rows without NaN or infinity within their bounds beside rows that have them; with the guarantee, also "
    "what the table of the op says of those rows, and of empty inputs"
)
WHY = "a maximum or a mask that swallows NaN turns a diverged model into plausible numbers"
CATCHES = ("nan_becomes_zero", "nan_spreads_to_next_row")

_SHAPES = ((4, 33), (16, 64), (2, 1000), (3, 128), (5, 1), (300, 16), (1, 1), (0, 16), (4, 0))
"""Those with a finite row beside a poisoned one come first: without it a case may decide nothing."""


def plan(subject: Subject, op: Op) -> Plan:
    """Ask for rows with NaN and infinities beside ordinary ones, and for nothing at all."""
    return Plan(
        gradients=subject.differentiable or not op.differentiable,
        hazards=("nonfinite",),
        joint=False,
        shapes=_SHAPES,
        eps=(1e-5,),
        must=("strength",),  # each is another pattern of NaN and infinities
    )


def skips(subject: Subject, op: Op, dtype: str, backend: str) -> None:
    """Apply to everything."""
    del subject, op, dtype, backend


def check(session: Session) -> list[Outcome]:
    """Judge the finite rows by their bounds, the others by the table."""
    backward = bool(session.op.differentiable) and session.subject.differentiable
    try:
        seen = session.execute(gradients=backward)
    except StoppedError as stopped:
        refused = stopped.outcome.verdict is Verdict.REFUSED
        if session.case.elements or not refused or NAME in session.subject.guarantees:
            raise
        text = f"output: an empty input is refused ({stopped.outcome.message})"
        return demanded(session.subject, NAME, [text], **_WORDS)
    wrong = session.shape_outcomes(seen, ("output",))
    if session.case.elements == 0:
        return demanded(session.subject, NAME, [o.message for o in wrong], **_WORDS)
    if wrong:
        return wrong
    names = ("output", *(n for n in gradient_names(session.subject, session.op) if n == "grad_input"))
    outcomes = [o for o in judge(session.truth, seen, names) if o.decided]
    return outcomes + demanded(session.subject, NAME, _table(session, seen), **_WORDS)


_WORDS = {"holds": "as the op's table says", "broken": "otherwise than the op's table says"}


def _table(session: Session, seen: Observation) -> Iterator[str]:
    """Yield what differs from the op's table, one sentence for each line of it."""
    tensor, case = seen.outputs.get("output"), session.case
    if tensor is None or tensor.numel() != case.elements or session.case.finite:
        return
    values = session.op.canonical(case, "output", to_float64(tensor))
    given = case_array(case, "input")
    assert given is not None
    x = session.op.canonical(case, "input", given)
    for words, where, meets in session.op.special(case.scalars, x):
        bad = where & ~meets(values)
        if bad.any():
            row, column = (int(i[0]) for i in np.nonzero(bad))
            yield (
                f"output: {words}; {int(bad.sum())} of {int(where.sum())} such elements differ, "
                f"first row {row}, column {column}: {float(values[row, column])!r}"
            )
