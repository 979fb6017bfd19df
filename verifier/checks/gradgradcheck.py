"""The second derivative is right or refused, never wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from verifier.arithmetic import Array
from verifier.case import Case
from verifier.checks import Session
from verifier.ops import Op
from verifier.oracle.normalization import solve
from verifier.recipes import Plan
from verifier.runner.execute import REFUSALS, lay_out
from verifier.runner.observation import Observation
from verifier.subjects import Subject
from verifier.verdicts import Outcome, Verdict

NAME = "gradgradcheck"
ORDER = 170
DEMANDS = (
    "differentiating the backward pass gives the derivative of the exact gradient, or raises a clear error; "
    "a gradient that is silently constant is as wrong as a false one"
)
WHY = "autograd differentiates a backward as it is written, with saved statistics as constants"
CATCHES = ("wrong_second_derivative", "second_derivative_missing")

STEP = 2.0**-17
"""Relative step of the difference quotients of the oracle, whose 106 bits have digits to spare."""
LARGEST_WEIGHT = 3
"""`directions` are integers from -3 to 3."""
ROUNDINGS = 2.0**27
"""Roundings of float64 that an evaluation may commit: see `_allowed`."""


def plan(subject: Subject, op: Op) -> Plan:
    """Ask for few elements: every one costs the oracle four evaluations."""
    del subject, op
    return Plan(
        gradients=True,
        hazards=("ordinary", "small_integers"),
        joint=False,
        max_elements=12,
        shapes=((1, 3), (2, 4), (3, 3), (2, 6), (1, 8), (4, 2)),
        eps=(1e-3, 0.5, 1e-5),
    )


def skips(subject: Subject, op: Op, dtype: str, backend: str) -> str | None:
    """Apply to differentiable subjects in float64."""
    del backend
    if not op.differentiable:
        return f"{op.name} is a backward pass itself, and no autograd function"
    if not subject.differentiable:
        return "declared forward only (differentiable=False)"
    if dtype != "float64":
        offered = "float64" in subject.dtypes
        return "second derivatives are compared in float64" + (
            ", which is checked on its own line" if offered else ", which the subject does not declare"
        )
    return None


def check(session: Session) -> list[Outcome]:
    """Compare the second derivatives of the subject with difference quotients of exact gradients."""
    case = session.case
    if case.elements == 0 or not case.finite:
        return []
    names = [n for n in session.op.differentiable if n in session.subject.signature and n in case.given]
    seen = session.execute(experiment="verifier.checks.gradgradcheck:experiment", names=names)
    if "refusal" in seen.facts:
        return [Outcome(verdict=Verdict.PASS, decided=1, facts=seen.facts)]
    if "missing" in seen.facts:
        text = f"grad_{seen.facts['missing']}: has no second derivative, and says so to nobody"
        return [Outcome(verdict=Verdict.FAIL, output="second_derivative", message=text, decided=1, wrong=1)]
    return [_judge(session, names, name, seen.outputs[name]) for name in (*names, "grad_output")]


def directions(names: list[str], case: Case) -> dict[str, torch.Tensor]:
    """Return fixed small integers that weigh the elements of each gradient into one number."""
    return {
        name: (
            torch.arange(case.given[name].numel(), dtype=torch.float64) * 5 % (2 * LARGEST_WEIGHT + 1)
            - LARGEST_WEIGHT
        ).reshape(case.given[name].shape)
        for name in names
    }


def _judge(session: Session, names: list[str], name: str, actual: torch.Tensor | None) -> Outcome:
    """Judge the derivative, with respect to one tensor, of the weighed sum of all gradients."""
    given = session.case.given[name]
    values = np.zeros(given.numel()) if actual is None else actual.reshape(-1).numpy()
    # A power of two near the largest element, so that the step is not lost in it.
    step = STEP * 2.0 ** math.frexp(max(float(given.abs().max()), 1.0))[1]
    half, whole = (_quotients(session, names, name, step * scale) for scale in (0.5, 1.0))
    error = np.abs(values - half)
    # A central difference errs by c * h**2 and terms of higher order: two steps show 3/4 of it.
    allowed = 4.0 * np.abs(whole - half) + _allowed(session)
    wrong = ~(error <= allowed)
    facts = {"worst": float(error.max(initial=0.0)), "allowed": float(allowed.max(initial=0.0))}
    if not wrong.any():
        return Outcome(verdict=Verdict.PASS, output=name, decided=values.size, facts=facts)
    place = int(np.argmax(np.where(wrong, error, -1.0)))
    text = (
        f"second derivative by {name}: {int(wrong.sum())} of {values.size} elements are wrong, the worst is "
        f"{float(values[place])!r} where the exact gradients change by {float(half[place])!r} a unit"
    )
    return Outcome(
        verdict=Verdict.FAIL,
        output="second_derivative",
        message=text,
        decided=values.size,
        wrong=int(wrong.sum()),
        facts=facts,
    )


def _quotients(session: Session, names: list[str], name: str, step: float) -> Array:
    """Return (exact weighed sum at x + h - the same at x - h) / 2h for each element of a tensor."""
    found = []
    for place in range(session.case.given[name].numel()):
        ends, sums = [], []
        for moved in _moved(session.case, name, place, step):
            ends.append(Fraction(moved.given[name].reshape(-1)[place].item()))
            sums.append(_weighed(session.op, moved, names))
        # x + h and x - h as float64 holds them: their distance is taken exactly.
        found.append(float((sums[0] - sums[1]) / (ends[0] - ends[1])))
    return np.array(found)


def _moved(case: Case, name: str, place: int, step: float) -> Iterator[Case]:
    for sign in (1.0, -1.0):
        tensor = case.given[name].clone()
        tensor.view(-1)[place] += sign * step
        yield replace(case, tensors={**case.tensors, name: tensor})


def _weighed(op: Op, case: Case, names: list[str]) -> Fraction:
    """Return the weighed sum of the exact gradients, in the digits of the double-double rung."""
    exact = op.exact(solve(op.problem(case), rung="double_double"))
    total = Fraction(0)
    for name, weights in directions(names, case).items():
        found = exact[f"grad_{name}"]
        order = _places(op, case, name)
        high, low = (np.broadcast_to(p, found.shape).reshape(-1) for p in (found.high, found.low))
        flat = weights.reshape(-1).numpy()
        for at, place in enumerate(order):
            total += Fraction(flat[place]) * (Fraction(float(high[at])) + Fraction(float(low[at])))
    return total


def _places(op: Op, case: Case, name: str) -> list[int]:
    """Return, for each canonical place of a gradient, its place in the tensor."""
    shape = case.given[name].shape
    numbers = np.arange(case.given[name].numel(), dtype=np.float64).reshape(shape)
    return [int(i) for i in op.canonical(case, f"grad_{name}", numbers).reshape(-1)]


def _allowed(session: Session) -> float:
    """Return a bound on the rounding error of any evaluation with fewer than 2^27 roundings.

    Each rounding errs by at most u times the intermediate that it rounds, and what it adds to the result
    is at most u times the product of the largest values of everything that an intermediate is made of:
    rstd (squared by the second derivative), two normalized values (each at most sqrt(N)), gradients,
    weights and the integers that weigh them, over all elements. A false formula is off by far more than
    the 2^-26 of that product that remains.
    """
    case = session.case
    largest: Mapping[str, float] = {
        n: 1.0 + float(t.double().abs().max()) for n, t in case.given.items() if t.numel()
    }
    exact = session.truth.exact.get("rstd")
    rstd = 1.0 + (0.0 if exact is None else float(np.max(exact.magnitude(), initial=0.0)))
    product = rstd**2 * largest.get("grad_output", 1.0) * largest.get("weight", 1.0)
    return ROUNDINGS * 2.0**-53 * product * LARGEST_WEIGHT * case.elements * max(case.columns, 1)


def experiment(subject: Subject, case: Case, *, place: Any, names: list[str]) -> Observation:
    """Differentiate twice; runs in the child."""
    call = lay_out(subject, case, device=place.device(), gradients=True)
    inputs = {name: call.placed[name].tensor for name in names}
    grad_output = call.placed["grad_output"].tensor.detach().clone().requires_grad_(True)
    returned = subject.function(**call.arguments)
    output = returned[0] if isinstance(returned, tuple | list) else returned
    weights = {n: w.to(output.device) for n, w in directions(names, case).items()}
    try:
        gradients = torch.autograd.grad(
            output, list(inputs.values()), grad_output, create_graph=True, allow_unused=True
        )
        constant = [n for n, g in zip(names, gradients, strict=True) if g is not None and not g.requires_grad]
        if constant:
            return Observation(status="ok", facts={"missing": constant[0]})
        terms = [(weights[n] * g).sum() for n, g in zip(names, gradients, strict=True) if g is not None]
        total = torch.stack(terms).sum()
        wanted = [*inputs.values(), grad_output]
        second = torch.autograd.grad(total, wanted, allow_unused=True)
    except REFUSALS as error:
        return Observation(status="ok", facts={"refusal": f"{type(error).__name__}: {error}"[:300]})
    found = dict(zip((*names, "grad_output"), second, strict=True))
    return Observation(status="ok", outputs=found)
