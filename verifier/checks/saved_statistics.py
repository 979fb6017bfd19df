"""The statistics that a kernel returns lie within their own bounds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from verifier.arithmetic.abstract_number import Form
from verifier.arithmetic.formats import FORMATS, Array
from verifier.cases.plan import Plan
from verifier.checks.support.output_verdict import format_of, judge, own_index
from verifier.checks.support.session import Session
from verifier.ops import Op, Solved
from verifier.ops.group_norm import scale_shift_forward
from verifier.ops.rows.compose_bounds import to_float64
from verifier.ops.rows.formula import composer_of
from verifier.ops.unknown import NO_BOUND
from verifier.oracle.formulas.problem import FormulaProblem
from verifier.oracle.problem import RowSolution
from verifier.oracle.rows.problem import RowProblem
from verifier.records.observation import Observation
from verifier.records.subject import Subject
from verifier.records.verdict import Outcome, Verdict

NAME = "saved_statistics"
ORDER = 90
NEEDS_A_NORM = NO_BOUND
DEMANDS = (
    "the saved mean and the saved rstd are within their theorems, each with one cast to the dtype that it "
    "is saved in; and the output was computed from them, unless the declaration says that lanes keep means "
    "of their own, or the sum that is normalized is known within bounds alone (dropout with a rounded scale)"
)
WHY = "the backward pass trusts what was saved: a wrong rstd leaves the output right and spoils the gradients"
CATCHES = ("saved_rstd_without_eps", "means_of_two_lanes")

ONE_MEAN = frozenset({"two_pass", "textbook", "welford", "chan", "rms"})
"""Algorithms that subtract the mean as one number: others subtract a shift or a correction as well."""
OTHER_STATISTICS = (
    "rows are normalized with several means, or with others than are saved "
    '(variance_options={"per_lane_means": True} declares that of welford and chan), or by another formula '
    "than is declared"
)


def plan(_subject: Subject, _op: Op) -> Plan:
    """Ask for every hazard of the input: nothing else matters to statistics."""
    return Plan(joint=False, share=0.6)


def skips(subject: Subject, op: Op, _dtype: str, _backend: str) -> str | None:
    """Apply to subjects that return statistics."""
    if _statistics(subject, op):
        return None
    return "returns no statistics (returns=('output', 'mean', 'rstd') would say so)"


def check(session: Session) -> list[Outcome]:
    """Judge every statistic that is returned."""
    names = _statistics(session.subject, session.op)
    seen = session.execute()
    wrong = {name: text for name in names if (text := _misshapen(session, seen, name))}
    names = tuple(n for n in names if not _are_none(session, seen, n))
    outcomes = [Outcome(verdict=Verdict.FAIL, output=n, message=f"{n}: {t}") for n, t in wrong.items()]
    outcomes += judge(session.truth, seen, tuple(n for n in names if n not in wrong))
    return (
        outcomes
        if any(o.verdict is Verdict.FAIL for o in outcomes)
        else outcomes + _recomputed(session, seen)
    )


def _statistics(subject: Subject, op: Op) -> tuple[str, ...]:
    return tuple(name for name in subject.returns if name not in op.outputs)


def _misshapen(session: Session, seen: Observation, name: str) -> str:
    """Say what is wrong with the form of a statistic: any shape that holds its numbers will do."""
    tensor = seen.outputs.get(name)
    if name not in session.truth.exact:
        return ""
    wanted = math.prod(session.truth.shape_of(name))
    if tensor is None:
        return f"is None; {wanted} number(s) are declared"
    if not tensor.dtype.is_floating_point:
        return f"has dtype {str(tensor.dtype).removeprefix('torch.')}; floating point is expected"
    if tensor.numel() == wanted or _are_none(session, seen, name):
        return ""
    return f"has {tensor.numel()} number(s); {wanted} are expected"


def _are_none(session: Session, seen: Observation, name: str) -> bool:
    """Return whether rows without elements have no statistic, where torch's norms give them 0 / 0."""
    tensor = seen.outputs.get(name)
    return session.case.elements == 0 and tensor is not None and tensor.numel() == 0


# -- whether the output was made of them --------------------------------------------------------------


def _recomputed(session: Session, seen: Observation) -> list[Outcome]:
    """Compare the output with that of the saved statistics, within the roundings of the declared formula."""
    claim, op, case = session.subject.claim, session.op, session.case
    output, rstd = seen.outputs.get("output"), seen.outputs.get("rstd")
    problem = session.truth.solved.problem
    centred = problem is not None and problem.centred
    asked = claim.variance in ONE_MEAN and not claim.variance_options.get("per_lane_means")
    asked &= not isinstance(problem, FormulaProblem) or problem.moments  # else the form makes them itself
    if not asked or output is None or rstd is None or not output.numel() or format_of(output) not in FORMATS:
        return []
    if (centred and seen.outputs.get("mean") is None) or session.shape_outcomes(seen, ("output",)):
        return []
    named = op.form(claim, case.dtype)
    forms = (*op.forms.values(), *(() if op.varied else (replace(named, forward=scale_shift_forward),)))
    if "formula" not in claim.assumed:
        forms = (named,)
    values = op.canonical(case, "output", to_float64(output))
    apart = np.ones(values.shape, dtype=np.bool_)
    for form in forms:
        expected, reach = _of_saved(session, seen, form, centred=centred)
        with np.errstate(invalid="ignore"):
            apart &= np.abs(values - expected) > reach  # false wherever anything is not finite
    if not apart.any():
        return []
    place = int(np.argmax(apart))
    at = ", ".join(map(str, own_index(session.truth, "output", place)))
    text = (
        f"output is not made of the saved statistics: {int(apart.sum())} of {values.size} elements, the "
        f"first at [{at}], differ from what mean and rstd give by more than the roundings of the formula; "
        f"{OTHER_STATISTICS}"
    )
    return [
        Outcome(
            verdict=Verdict.FAIL,
            output="output",
            message=text,
            decided=values.size,
            wrong=int(apart.sum()),
        )
    ]


def _of_saved(session: Session, seen: Observation, form: Form, *, centred: bool) -> tuple[Array, Array]:
    """Return the output that the saved statistics give, and what that of a right kernel differs from it.

    The forward pass may use them before they are rounded to the format in which they are saved; the mean
    before it is rounded at all, where it is contracted; and divide by the root instead of multiplying.
    """
    truth, claim = session.truth, session.subject.claim
    arithmetic = truth.setting.arithmetic
    problem, solution = truth.solved.problem, truth.solved.solution
    assert isinstance(problem, RowProblem)
    assert isinstance(solution, RowSolution)
    solved = Solved(case=truth.solved.case, problem=problem, solution=solution)
    composer = composer_of(solved, claim, form, truth.setting)
    composer.own()
    saved, cast = {}, {}
    for name in ("mean", "rstd") if centred else ("rstd",):
        tensor = seen.outputs[name]
        assert tensor is not None
        held = FORMATS[format_of(tensor)]
        saved[name] = session.op.canonical(session.case, name, to_float64(tensor)).reshape(-1, 1)
        cast[name] = (0.0, 0.0) if held.holds(arithmetic.format) else (2.0 * held.u, held.omega)
    relative = (arithmetic.division + arithmetic.reciprocal_square_root) * arithmetic.u + cast["rstd"][0]
    of_rstd = relative * np.abs(saved["rstd"]) + cast["rstd"][1]
    if not centred:
        nothing = np.zeros_like(saved["rstd"])
        return composer.from_statistics(nothing, saved["rstd"], nothing, of_rstd)
    size = np.abs(saved["mean"])
    # Running statistics are given: they have no moments, and are one number each.
    means = composer.moments
    spread = np.zeros_like(size) if means is None else np.reshape(means.mean_spread, (-1, 1))
    if claim.mean_contraction != "none":
        spread = np.fmax(spread, arithmetic.u * 2.0 * size + arithmetic.omega)
    with np.errstate(invalid="ignore"):
        of_mean = spread + cast["mean"][0] * size + cast["mean"][1]
    return composer.from_statistics(saved["mean"], saved["rstd"], of_mean, of_rstd)
