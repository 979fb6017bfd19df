"""The second derivative is right or refused, never wrong, where that is guaranteed."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import torch

from verifier.cases.plan import Plan
from verifier.checks.support.session import Session
from verifier.execution.backend import Backend, Power
from verifier.execution.backends import can
from verifier.execution.call_subject import REFUSALS, UnusableError, failure, lay_out
from verifier.machine.culprit import passed_on
from verifier.ops import Op
from verifier.oracle.enclosure import Mask
from verifier.oracle.solve import solve
from verifier.records.case import Case
from verifier.records.observation import Observation
from verifier.records.printable import said
from verifier.records.subject import Subject
from verifier.records.verdict import Measured, Outcome, Verdict

NAME = "gradgradcheck"
IN_FLOAT64 = True
GUARANTEE = "second derivatives are right, or refused by an error that says so"
ORDER = 170
JUDGES_NUMBERS = True
NEEDS_A_NORM = "second derivatives of a specification of the subject's own are not derived"
DEMANDS = (
    "where second derivatives are guaranteed, differentiating the backward pass gives the derivative of the"
    " exact gradient, or raises a clear error; a gradient that silently counts as constant is as wrong as a"
    " false one"
)
WHY = "autograd differentiates a backward pass as it is written, and takes saved statistics for constants"
CATCHES = ("wrong_second_derivative", "second_derivative_missing")

STEP = 2.0**-17
"""Relative step of the difference quotients of the oracle, whose 106 bits have digits to spare."""
REFUSING = ("differentiate twice", "once_differentiable", "second deriv", "double backward", "derivative")
"""A refusal says what is refused, in words like these: PyTorch's own, or the author's."""
LARGEST_WEIGHT = 3
"""Weights and directions are integers from -3 to 3."""
DIRECTIONS = 2
"""Along which each second derivative is compared: a false one vanishes along both by chance alone."""
ROUNDINGS = 2.0**27
"""Roundings of float64 that an evaluation may commit: see `_allowed`."""

MEND = (
    "autograd differentiates the backward as if it were written in torch: "
    "@torch.autograd.function.once_differentiable above it makes that a clear error"
)
"""How a backward pass of which only the first derivative is meant to be taken says so."""
EVIDENCE = "second derivatives agree with difference quotients of exact gradients: evidence, and no proof"


@dataclass(frozen=True, kw_only=True)
class SecondDerivatives:
    """What a subject says when it is asked for a second derivative, where it does not simply give one.

    refusal: its error, if it says what is refused; unclear: its error does not. missing: the name of a tensor
    whose gradient is constant.
    """

    refusal: str = ""
    unclear: bool = False
    missing: str = ""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """By how much a second derivative and its difference quotient differ, and may."""

    error: float
    allowed: float


def plan(_subject: Subject, _op: Op) -> Plan:
    """Ask for few elements: the oracle evaluates each case some twenty times."""
    return Plan(
        gradients=True,
        hazards=("ordinary", "small_integers"),
        joint=False,
        max_elements=12,
        shapes=((1, 3), (2, 4), (3, 3), (2, 6), (1, 8), (4, 2)),
        eps=(1e-3, 0.5, 1e-5),
        share=0.4,
    )


def skips(subject: Subject, op: Op, dtype: str, backend: str) -> str | None:
    """Apply to differentiable subjects in float64; compiled ones may refuse in lower precision too."""
    if not op.differentiable:
        return f"{op.name} is a backward pass itself, and no autograd function"
    if not subject.differentiable:
        return "declared forward only (differentiable=False)"
    if dtype != "float64" and not can(backend, Power.SHADOWS):
        offered = "float64" in subject.dtypes
        return "second derivatives are compared in float64" + (
            ", which is checked on its own line" if offered else ", which the subject does not declare"
        )
    return None


def check(session: Session) -> list[Outcome]:
    """Compare the second derivatives of the subject with difference quotients of exact gradients."""
    case = session.case
    if case.elements == 0 or not case.finite or _untouched(session).all(axis=1).any():
        return []
    names = [n for n in session.op.differentiable if session.subject.gives_gradient(n) and n in case.given]
    seen = session.execute(experiment="verifier.checks.gradgradcheck:experiment", names=names)
    answer = seen.found_as(SecondDerivatives)
    if answer.refusal:
        return [Outcome(verdict=Verdict.PASS, decided=1, evidence=answer)]
    if answer.unclear:
        return [_unclear(session.subject, seen)]
    if answer.missing:
        text = f"grad_{answer.missing}: has no second derivative, and raises no error"
        return [_wrong(session.subject, "gradients silently count as constant", text)]
    if case.dtype != "float64":
        text = "no refusal; second derivatives themselves are compared in float64 only"
        return [Outcome(verdict=Verdict.SKIPPED, message=text, measured=Measured(seen=text))]
    return [o for name in (*names, "grad_output") for o in _judge(session, names, name, seen.outputs[name])]


def _wrong(subject: Subject, what: str, text: str, evidence: Compared | None = None) -> Outcome:
    """Fail a promise, or report what nobody promised as measured: that decides nothing.

    what: the failure in a few words, the same for all cases.
    """
    message = f"{text}; {MEND}"
    if NAME in subject.guarantees:
        return Outcome(
            verdict=Verdict.FAIL,
            output="second_derivative",
            message=message,
            decided=1,
            wrong=1,
            evidence=evidence,
        )
    why = f"second derivatives are not guaranteed, and not to be used ({MEND})"
    measured = Measured(seen=what, undemanded=why)
    return Outcome(verdict=Verdict.SKIPPED, message=message, measured=measured, evidence=evidence)


def _unclear(subject: Subject, seen: Observation) -> Outcome:
    """Report an error that does not say what is refused: loud, so that only the guarantee forbids it."""
    if NAME in subject.guarantees:
        text = f"second derivative: an error that does not say what is refused ({seen.message})"
        return Outcome(verdict=Verdict.CRASH, output="second_derivative", message=text)
    loud = f"an error that does not say so ({seen.message})"
    measured = Measured(seen=loud, undemanded="second derivatives are not guaranteed")
    return Outcome(verdict=Verdict.SKIPPED, message=measured.text, measured=measured)


def integers(shape: tuple[int, ...], turn: int) -> torch.Tensor:
    """Return fixed small integers of a shape, float64; another turn, other integers."""
    count = math.prod(shape)
    numbers = (torch.arange(count, dtype=torch.float64) * (5 - turn) + turn) % (2 * LARGEST_WEIGHT + 1)
    return (numbers - LARGEST_WEIGHT).reshape(shape)


def directions(names: list[str], case: Case) -> dict[str, torch.Tensor]:
    """Return the integers that weigh the elements of each gradient into one number."""
    return {name: integers(tuple(case.given[name].shape), 0) for name in names}


def _judge(session: Session, names: list[str], name: str, actual: torch.Tensor | None) -> list[Outcome]:
    """Judge the derivative, by one tensor, of the weighed sum of all gradients, along two directions."""
    given = session.case.given[name].double()
    values = torch.zeros_like(given) if actual is None else actual.double()
    # A power of two near the largest element, so that the step is not lost in it.
    step = STEP * 2.0 ** math.frexp(max(float(given.abs().max()), 1.0))[1]
    outcomes = []
    for turn in range(DIRECTIONS):
        along = integers(given.shape, turn + 1)
        if name == "grad_output":  # no gradient comes to what is masked out
            index = session.op.flat_index(session.case, name, tuple(given.shape))
            along.view(-1)[torch.from_numpy(index[_untouched(session)])] = 0.0
        derivative = float((values * along).sum())
        half, whole = (_quotient(session, names, name, along * step * scale) for scale in (0.5, 1.0))
        half, whole = half / (0.5 * step), whole / step
        # A central difference errs by c * h**2 and terms of higher order: two steps show 3/4 of it.
        allowed = 4.0 * abs(whole - half) + _allowed(session)
        outcomes.append(_outcome(session.subject, name, derivative, half, allowed))
    return outcomes


def _untouched(session: Session) -> Mask:
    """Return which elements of the input's gradient are masked out, in canonical rows."""
    return session.op.untouched(session.case)


def _outcome(subject: Subject, name: str, derivative: float, exact: float, allowed: float) -> Outcome:
    """Return what the comparison shows: a contradiction, or agreement, which is evidence and no proof.

    `allowed` rests on two hypotheses that no theorem gives: that the truncation of a quotient is less than
    four times what half the step changes, and that the subject rounds fewer than 2^27 times.
    """
    compared = Compared(error=abs(derivative - exact), allowed=allowed)
    if compared.error <= allowed:
        measured = Measured(seen=EVIDENCE)
        return Outcome(
            verdict=Verdict.SKIPPED, output=name, message=EVIDENCE, measured=measured, evidence=compared
        )
    text = (
        f"second derivative by {name}: {derivative!r} along a direction in which the exact gradients change "
        f"by {exact!r} a unit (allowed difference {allowed:.3g}, four times what half the step changes, and "
        f"2^27 roundings)"
    )
    return _wrong(subject, f"another second derivative by {name} than the exact one", text, compared)


def _quotient(session: Session, names: list[str], name: str, by: torch.Tensor) -> float:
    """Return half the exact weighed sum at x + by, less that at x - by.

    float64 rounds x + by: each element moves by its part of the step to within 2^-36 relative, which is
    below the 2^-26 that `_allowed` leaves.
    """
    tensor = session.case.given[name]
    ends = [
        replace(session.case, tensors={**session.case.tensors, name: (tensor + sign * by).contiguous()})
        for sign in (1.0, -1.0)
    ]
    first, second = (_weighed(session.op, end, names) for end in ends)
    return float((first - second) / 2)


def _weighed(op: Op, case: Case, names: list[str]) -> Fraction:
    """Return the weighed sum of the exact gradients, in the digits of the double-double rung."""
    posed = op.problem(case)
    assert posed is not None
    exact = op.exact(solve(posed, rung="double_double"))
    total = Fraction(0)
    for name, weights in directions(names, case).items():
        found = exact[f"grad_{name}"]
        index = op.flat_index(case, f"grad_{name}", tuple(case.given[name].shape)).reshape(-1).tolist()
        high, low = (np.broadcast_to(p, found.shape).reshape(-1) for p in (found.high, found.low))
        flat = weights.reshape(-1).numpy()
        for at, place in enumerate(index):
            total += Fraction(flat[place]) * (Fraction(float(high[at])) + Fraction(float(low[at])))
    return total


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
    product = largest.get("grad_output", 1.0) * largest.get("weight", 1.0)
    # What is normalized is made of the input, if no statistic is saved: that is a factor, too.
    if exact is None and session.op.reads_eps:
        rstd = 1.0 + max(case.eps, sys.float_info.min) ** -0.5
        product *= largest["input"] ** 2
    product *= rstd**2
    if session.op.varied:  # a gate multiplies what the bias is part of, and its derivatives grow with it
        product *= largest.get("bias", 1.0) * math.prod(largest.get(n, 1.0) ** 2 for n in session.op.varied)
    weights = LARGEST_WEIGHT**2 * case.elements * max(case.columns, 1)
    return ROUNDINGS * 2.0**-53 * product * weights


def experiment(subject: Subject, case: Case, *, backend: Backend, names: list[str]) -> Observation:
    """Differentiate twice; runs in the child."""
    backend.begin()
    try:
        call = lay_out(subject, case, device=backend.device(), gradients=True)
        returned = passed_on(subject.function, **call.arguments)
    except UnusableError as error:
        return Observation(status="unusable", message=str(error))
    except Exception as error:
        return failure(error, backend)
    output = returned[0] if isinstance(returned, tuple | list) else returned
    inputs = {name: call.placed[name].tensor for name in names}
    grad_output = call.placed["grad_output"].tensor.detach().clone().requires_grad_(True)
    try:
        gradients = passed_on(
            torch.autograd.grad,
            output,
            list(inputs.values()),
            grad_output,
            create_graph=True,
            allow_unused=True,
        )
    except Exception as error:
        seen = failure(error, backend)
        return seen if seen.status in _NOT_ITS else _refused(error) or seen
    found = {n: g for n, g in zip(names, gradients, strict=True) if g is not None}
    constant = [name for name, gradient in found.items() if not gradient.requires_grad]
    if constant:
        return Observation(status="ok", found=SecondDerivatives(missing=constant[0]))
    weights = directions(names, case)
    total = torch.stack([(weights[n].to(g.device) * g).sum() for n, g in found.items()]).sum()
    try:
        # Not autograd.grad: it passes over the node that refuses, which leads to none of its inputs.
        passed_on(torch.autograd.backward, total)
    except Exception as error:
        seen = failure(error, backend)
        unclear = replace(seen, status="ok", found=SecondDerivatives(unclear=True))
        return seen if seen.status in _NOT_ITS else _refused(error) or unclear
    second = {name: tensor.grad for name, tensor in {**inputs, "grad_output": grad_output}.items()}
    return Observation(status="ok", outputs=second, found=SecondDerivatives())


_NOT_ITS = ("undecided", "error")
"""Statuses of what says nothing about the subject."""


def _refused(error: Exception) -> Observation | None:
    """Return the refusal that an error is, or None if a reader would not know what is refused."""
    text = said(error)
    clear = isinstance(error, NotImplementedError) or any(word in text for word in REFUSING)
    if not clear or not isinstance(error, REFUSALS):
        return None
    return Observation(status="ok", found=SecondDerivatives(refusal=text[:300]))
