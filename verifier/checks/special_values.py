"""NaN and infinities stay in their rows and come out as the op's table says; empty inputs too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from verifier.arithmetic import Array
from verifier.case import Case
from verifier.checks import Session, StoppedError, gradient_names
from verifier.checks.comparing import demanded
from verifier.judge import judge
from verifier.ops import Op
from verifier.ops.rows import case_array, to_float64
from verifier.oracle.enclosure import Mask
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

_SHAPES = ((4, 33), (16, 64), (1, 1), (2, 1000), (3, 128), (5, 1), (300, 16), (0, 16), (4, 0))


def plan(subject: Subject, op: Op) -> Plan:
    """Ask for rows with NaN and infinities beside ordinary ones, and for nothing at all."""
    return Plan(
        gradients=subject.differentiable or not op.differentiable,
        hazards=("nonfinite",),
        joint=False,
        shapes=_SHAPES,
        eps=(1e-5,),
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

Expectation = tuple[str, Mask, Callable[[Array], Mask]]
"""What is expected in words, of which elements, and the elements of an output that meet it."""


def _table(session: Session, seen: Observation) -> Iterator[str]:
    """Yield what differs from the op's table, one sentence for each line of it."""
    tensor, case = seen.outputs.get("output"), session.case
    if tensor is None or tensor.numel() != case.elements or session.case.finite:
        return
    values = session.op.canonical(case, "output", to_float64(tensor))
    given = case_array(case, "input")
    assert given is not None
    rule = TABLE.get(case.op, _elementwise)
    for words, where, meets in rule(case, session.op.canonical(case, "input", given)):
        bad = where & ~meets(values)
        if bad.any():
            row, column = (int(i[0]) for i in np.nonzero(bad))
            yield (
                f"output: {words}; {int(bad.sum())} of {int(where.sum())} such elements differ, "
                f"first row {row}, column {column}: {float(values[row, column])!r}"
            )


def _not_finite(values: Array) -> Mask:
    return np.asarray(~np.isfinite(values))


def _zero_or_nan(values: Array) -> Mask:
    return np.asarray((values == 0) | np.isnan(values))


def _rows_of(elements: Mask) -> Mask:
    """Return all elements of the rows in which some element is marked."""
    return np.asarray(np.broadcast_to(elements.any(axis=1, keepdims=True), elements.shape))


def _elementwise(case: Case, x: Array) -> Iterator[Expectation]:
    """NaN gives NaN: true of every op."""
    del case
    yield "NaN gives NaN", np.isnan(x), np.isnan


def _centred(case: Case, x: Array) -> Iterator[Expectation]:
    """Take deviations from a mean that is NaN or infinite: they all are."""
    if not case.scalars.get("training", True):
        yield from _elementwise(case, x)
        return
    held = _rows_of(np.isnan(x))
    yield "a row that holds NaN is NaN throughout", held, np.isnan
    yield "a row that holds an infinity has no finite output", _rows_of(np.isinf(x)) & ~held, _not_finite


def _root_mean_square(case: Case, x: Array) -> Iterator[Expectation]:
    """Divide by an infinite root mean square: finite elements vanish, infinite ones are inf / inf."""
    del case
    held = _rows_of(np.isnan(x))
    infinite = _rows_of(np.isinf(x)) & ~held
    yield "a row that holds NaN is NaN throughout", held, np.isnan
    yield "an infinity gives NaN", infinite & np.isinf(x), np.isnan
    yield "a number beside an infinity gives 0 (or NaN)", infinite & ~np.isinf(x), _zero_or_nan


def _exponentials(case: Case, x: Array) -> Iterator[Expectation]:
    """Leave no distribution of NaN, inf or -inf alone; -inf among numbers is a probability of 0."""
    del case
    yield "a row that holds NaN is NaN throughout", _rows_of(np.isnan(x)), np.isnan
    yield "a row that holds +inf is NaN throughout", _rows_of(np.isposinf(x)), np.isnan
    nothing = np.broadcast_to(np.isneginf(x).all(axis=1, keepdims=True), x.shape)
    yield "a row of -inf alone is NaN throughout", np.asarray(nothing), np.isnan


TABLE: Mapping[str, Callable[[Case, Array], Iterator[Expectation]]] = {
    "layer_norm": _centred,
    "group_norm": _centred,
    "batch_norm": _centred,
    "rms_norm": _root_mean_square,
    "softmax": _exponentials,
    "log_softmax": _exponentials,
}
"""What each op makes of NaN and infinities in a row, as IEEE arithmetic on its definition gives it."""
