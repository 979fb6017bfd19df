"""NaN and infinities reach what is made of them alone, as the op's table says; empty inputs too."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from strategies.hazards.special import BEGINNINGS
from verifier.arithmetic.formats import Array
from verifier.bounds.variance import Mask
from verifier.cases.plan import Plan
from verifier.checks.support.bits import demanded
from verifier.checks.support.output_verdict import judge
from verifier.checks.support.session import Session, StoppedError, result_names
from verifier.ops import Op
from verifier.ops.rows.compose_bounds import to_float64
from verifier.records.observation import Deviation, Observation
from verifier.records.subject import Subject
from verifier.records.verdict import Outcome, Verdict

NAME = "special_values"
GUARANTEE = "NaN, infinities and empty inputs come out as the op's table says"
ORDER = 100
NEEDS_A_NORM = "a specification of the subject's own does not say what NaN and infinities give"
DEMANDS = (
    "results that no NaN or infinity of input, weight, bias or grad_output reaches stay within their bounds; "
    "where special_values is guaranteed, what they reach and empty inputs give what the table of the op says"
)
WHY = "a maximum or a mask that swallows NaN turns a diverged model into plausible numbers"
CATCHES = (
    "nan_becomes_zero",
    "nan_spreads_to_next_row",
    "nan_of_weight_spreads",
    "nan_of_bias_becomes_zero",
    "nan_of_gradient_becomes_zero",
    "nan_of_gate_becomes_zero",
    "nan_of_tangent_clamped",
    "infinity_of_weight_clamped",
    "infinity_of_bias_clamped",
    "infinity_of_gradient_clamped",
    "first_tile_masked_triton",
    "nan_clamped_in_long_rows_triton",
)

_SHAPES = ((4, 33), (0, 16), (4, 0), (16, 64), (2, 1000), (3, 128), (5, 1), (300, 16), (1, 1))
"""Those with a finite row beside a poisoned one come before one of one row, which may decide nothing."""


def plan(subject: Subject, op: Op) -> Plan:
    """Ask for NaN and infinities beside ordinary numbers, in one tensor at a time, and for nothing at all."""
    return Plan(
        gradients=subject.differentiable or not op.differentiable,
        hazards=("nonfinite",),
        joint=False,
        shapes=_SHAPES,
        eps=(1e-5,),
        must=("strength", "shape"),  # each strength is another pattern of NaN and infinities
        leads="strength",
        carriers=("weight", "bias", *op.varied, "grad_output"),
        reaching=True,  # what masked tiles leave in the statistics, only long rows show
        reaching_rows=BEGINNINGS,
        most_reaching=2,
        reaching_hazards=("infinite_beginning", "nonfinite"),  # NaN where the domain ends before infinity
    )


def check(session: Session) -> list[Outcome]:
    """Judge by their bounds the results that have finite values, the others by the table."""
    backward = bool(session.op.differentiable) and session.subject.differentiable
    try:
        seen = session.execute(gradients=backward)
    except StoppedError as stopped:
        refused = stopped.outcome.verdict is Verdict.REFUSED
        if session.case.elements or not refused or NAME in session.subject.guarantees:
            raise
        text = f"output: an empty input is refused ({stopped.outcome.message})"
        return demanded(session.subject, NAME, [Deviation("output", text)], **_WORDS)
    wrong = session.shape_outcomes(seen, ("output",))
    if session.case.elements == 0:
        return demanded(session.subject, NAME, [Deviation(o.output, o.message) for o in wrong], **_WORDS)
    if wrong:
        return wrong
    names = _names(session)
    outcomes = [o for o in judge(session.truth, seen, names) if o.decided]
    return outcomes + demanded(session.subject, NAME, _table(session, seen), **_WORDS)


_WORDS = {"holds": "as the op's table says", "broken": "not as the op's table says"}


def _names(session: Session) -> tuple[str, ...]:
    return result_names(session.subject, session.op)


def _table(session: Session, seen: Observation) -> Iterator[Deviation]:
    """Yield what differs from the op's table, each line of it once."""
    if not session.case.finite:
        yield from _of_rows(session, seen)
        yield from _reached(session, seen)


def _of_rows(session: Session, seen: Observation) -> Iterator[Deviation]:
    """Yield what an output lacks in rows whose input is not finite."""
    tensor, case = seen.outputs.get("output"), session.case
    given = to_float64(session.op.reads(case))
    if tensor is None or tensor.numel() != case.elements or np.isfinite(given).all():
        return
    values = session.op.canonical(case, "output", to_float64(tensor))
    x = session.op.canonical(case, "input", given)
    for words, where, meets in session.op.special(case.scalars, x):
        bad = where & ~meets(values)
        if bad.any():
            yield Deviation("output", f"output: {words}; {_count(bad, where, values)}")


def _reached(session: Session, seen: Observation) -> Iterator[Deviation]:
    """Yield what the results lack that a NaN, or an infinity, reaches: they have no finite exact value."""
    case, truth = session.case, session.truth
    carriers = [name for name, tensor in case.given.items() if not bool(tensor.isfinite().all())]
    infinite = any(bool(case.given[name].isinf().any()) for name in carriers)
    if infinite and set(carriers) & set(session.op.varied):
        return  # a gate that is infinite is open or shut: what it gives may well be finite
    # Statistics of a row with an infinity may be finite, and those that are given say nothing of it.
    statistics = case.scalars.get("training", True) and not session.op.derived
    if "input" in carriers and (infinite or not statistics):
        return
    word = f"{'NaN or infinity' if infinite else 'NaN'} in {' and '.join(carriers)}"
    for name in _names(session):
        tensor, exact = seen.outputs.get(name), truth.exact.get(name)
        if tensor is None or exact is None or tensor.numel() != math.prod(truth.shape_of(name)):
            continue
        if name == "output" and "input" in carriers:
            continue  # the table of rows speaks of it
        values = session.op.canonical(case, name, to_float64(tensor))
        where = np.broadcast_to(np.isnan(exact.high), values.shape)
        bad = where & (np.isfinite(values) if infinite else ~np.isnan(values))
        if bad.any():
            text = f"{name}: {word} is lost on the way; {_count(bad, where, values)}"
            yield Deviation(name, text)


def _count(bad: Mask, where: Mask, values: Array) -> str:
    at = tuple(int(i[0]) for i in np.nonzero(bad))
    place = f"row {at[0]}, column {at[1]}" if len(at) > 1 else f"entry {at[0]}"
    differ = f"{int(bad.sum())} of {int(where.sum())} such elements differ"
    return f"{differ}, first {place}: {float(values[at])!r}"
