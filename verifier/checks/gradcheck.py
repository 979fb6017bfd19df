"""The backward pass is the derivative of the forward pass, by torch.autograd.gradcheck in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from verifier.arithmetic import Array
from verifier.case import Case
from verifier.checks import Session
from verifier.ops import Op
from verifier.oracle.normalization import solve
from verifier.recipes import Plan
from verifier.runner.execute import lay_out
from verifier.runner.observation import Observation
from verifier.subjects import Subject
from verifier.verdicts import Outcome, Verdict

NAME = "gradcheck"
ORDER = 60
DEMANDS = "central differences of the forward pass equal the backward pass, within proved errors of both"
WHY = "forward and backward that do not belong together, whatever either of them claims to compute"
CATCHES = ("backward_with_eps_twice",)

STEP = 2.0**-17
"""Relative step of the central differences: near the cube root of float64's roundoff, a power of two."""


def plan(subject: Subject, op: Op) -> Plan:
    """Ask for few, ordinary elements: every one costs two evaluations."""
    del subject, op
    return Plan(
        gradients=True,
        hazards=("ordinary", "small_integers", "two_level", "sorted_row"),
        joint=False,
        max_elements=24,
        max_rows=4,
        max_columns=12,
        min_rows=1,
        min_columns=2,
        eps=(1e-5, 1e-3, 0.5),
    )


def skips(subject: Subject, op: Op, dtype: str, backend: str) -> str | None:
    """Apply to differentiable subjects in float64."""
    del backend
    if not op.differentiable:
        return f"{op.name} is a backward pass itself; see gradient"
    if not subject.differentiable:
        return "declared forward only (differentiable=False)"
    if op.needs_variance and not subject.claims:
        return "no variance algorithm is declared, so the error of a difference quotient has no bound"
    if dtype != "float64":
        offered = "float64" in subject.dtypes
        return "finite differences need float64" + (
            ", which is checked on its own line" if offered else ", which the subject does not declare"
        )
    return None


def check(session: Session) -> list[Outcome]:
    """Run gradcheck with the tolerance that the theorems of forward, backward and differences give."""
    case = session.case
    wanted = [n for n in session.op.differentiable if n in session.subject.signature and n in case.given]
    tolerance = _tolerance(session, wanted)
    if tolerance is None:
        return [Outcome(verdict=Verdict.NO_THEOREM, uncovered=1, message="gradcheck: no bound on this input")]
    step = STEP * _scale(case)
    seen = session.execute(
        experiment="verifier.checks.gradcheck:experiment", names=wanted, step=step, tolerance=tolerance
    )
    facts = {"atol": tolerance, "step": step}
    if seen.facts["passed"]:
        return [Outcome(verdict=Verdict.PASS, decided=1, facts=facts)]
    text = f"gradcheck: the backward pass is not the derivative of the forward pass ({seen.message})"
    return [Outcome(verdict=Verdict.FAIL, message=text, facts=facts, decided=1, wrong=1)]


def _scale(case: Case) -> float:
    """Return a power of two near the largest input, so that the step is exact relative to it."""
    return 2.0 ** math.frexp(max(case.largest, 1e-3))[1]


def _tolerance(session: Session, names: list[str]) -> float | None:
    """Return B / h + truncation + the bound of the backward pass for unit gradients.

    B is the float64 forward bound on these inputs; truncation is |exact difference quotient - exact
    derivative|, both evaluated by the oracle on the same inputs.
    """
    step = STEP * _scale(session.case)
    largest_forward, largest_backward, truncation = 0.0, 0.0, 0.0
    unit = _with_gradient(session.case, None)
    for moved in (unit, *_moved(session, names, step)):
        forward = _bound(session, moved, "output")
        if forward is None:
            return None
        largest_forward = max(largest_forward, forward)
    for output in range(session.case.elements):
        one = _with_gradient(session.case, output)
        truth = replace(session.truth, case=one)
        for name in names:
            bounded = truth.bounds[f"grad_{name}"]
            if not bounded.covered.all():
                return None
            largest_backward = max(largest_backward, float(bounded.bound.max(initial=0.0)))
    truncation = _truncation(session, names, step)
    return (largest_forward / step + truncation + largest_backward) * (1.0 + 2.0**-20)


def _bound(session: Session, case: Case, name: str) -> float | None:
    truth = replace(session.truth, case=case)
    bounded = truth.bounds[name]
    return float(np.max(bounded.bound, initial=0.0)) if bounded.covered.all() else None


def _moved(session: Session, names: list[str], step: float) -> list[Case]:
    """Return the case with each tensor moved by the step as a whole: the far ends of the differences."""
    given = session.case.given
    places = [(name, place) for name in names for place in range(given[name].numel())]
    return [_shifted(session.case, n, place, sign * step) for n, place in places for sign in (1.0, -1.0)]


def _shifted(case: Case, name: str, place: int, by: float) -> Case:
    tensor = case.given[name].clone()
    tensor.view(-1)[place] += by
    return replace(case, tensors={**case.tensors, name: tensor})


def _with_gradient(case: Case, output: int | None) -> Case:
    """Return the case with a unit gradient at one output element (or of zeros)."""
    gradient = torch.zeros_like(case.given["grad_output"])
    if output is not None:
        gradient.view(-1)[output] = 1.0
    return replace(case, tensors={**case.tensors, "grad_output": gradient})


def _truncation(session: Session, names: list[str], step: float) -> float:
    """Return the largest |difference quotient - derivative| of the exact op over the Jacobian."""
    the_op, case = session.op, session.case
    worst = 0.0
    rows: list[Mapping[str, Array]] = []
    for output in range(case.elements):
        problem = the_op.problem(_with_gradient(case, output))
        found = the_op.exact(solve(problem, rung="double_double"))
        rows.append({name: np.asarray(found[f"grad_{name}"].high).reshape(-1) for name in names})
    for name in names:
        for place in range(case.given[name].numel()):
            ends = [_exact_output(the_op, _shifted(case, name, place, s * step)) for s in (1.0, -1.0)]
            quotient = ((ends[0][0] - ends[1][0]) + (ends[0][1] - ends[1][1])) / (2.0 * step)
            derivative = np.array([row[name][place] for row in rows])
            worst = max(worst, float(np.max(np.abs(quotient - derivative), initial=0.0)))
    return worst * (1.0 + 2.0**-10)


def _exact_output(the_op: Op, case: Case) -> tuple[Array, Array]:
    found = the_op.exact(solve(the_op.problem(case), rung="double_double"))["output"]
    return np.asarray(found.high).reshape(-1), np.asarray(found.low).reshape(-1)


def experiment(
    subject: Subject, case: Case, *, place: Any, names: list[str], step: float, tolerance: float
) -> Observation:
    """Call torch.autograd.gradcheck on the subject; runs in the child."""
    from torch.autograd.gradcheck import GradcheckError

    call = lay_out(subject, case, device=place.device(), gradients=False)
    tensors = [call.placed[name].tensor.detach().clone().requires_grad_(True) for name in names]

    def function(*inputs: torch.Tensor) -> torch.Tensor:
        arguments = {**call.arguments, **dict(zip(names, inputs, strict=True))}
        output: Any = subject.function(**arguments)
        first: torch.Tensor = output[0] if isinstance(output, tuple | list) else output
        return first

    try:
        torch.autograd.gradcheck(
            function, tensors, eps=step, atol=tolerance, rtol=0.0, nondet_tol=tolerance, fast_mode=False
        )
    except GradcheckError as error:
        message = " ".join(str(error).split())[:300]
        return Observation(status="ok", message=message, facts={"passed": False})
    return Observation(status="ok", facts={"passed": True})
