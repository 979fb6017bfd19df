"""The backward pass leaves alone what the rest of a network still needs, and can be run again."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from verifier.cases.plan import Plan
from verifier.checks.support.bits import bit_numbers, deviating
from verifier.checks.support.output_verdict import judge
from verifier.checks.support.session import Session, gradient_names
from verifier.execution.backend import Backend
from verifier.execution.call_subject import REFUSALS, UnusableError, failure, lay_out
from verifier.machine.culprit import is_own, passed_on
from verifier.ops import Op
from verifier.ops.unknown import NO_BOUND
from verifier.records.case import Case
from verifier.records.observation import Deviation, Observation
from verifier.records.subject import Subject
from verifier.records.verdict import Outcome, Verdict

NAME = "context"
ORDER = 130
NEEDS_A_NORM = NO_BOUND
DEMANDS = (
    "in norm(x) + r, the gradient of r equals grad_output bit for bit, and grad_output stays unchanged; a "
    "second backward pass is as right as the first; after an in-place change of the output the gradients "
    "are right, or the kernel raises a clear error"
)
WHY = (
    "a backward pass that uses grad_output or its saved tensors as scratch memory passes every test that "
    "runs it alone"
)
CATCHES = ("grad_output_overwritten", "backward_works_once", "output_saved_unseen")


def plan(_subject: Subject, _op: Op) -> Plan:
    """Ask for a few ordinary rows."""
    return Plan(
        gradients=True,
        hazards=("ordinary", "small_integers"),
        joint=False,
        max_elements=4800,
        min_rows=1,
        min_columns=1,
        eps=(1e-5,),
        share=0.3,
    )


def skips(subject: Subject, op: Op, _dtype: str, _backend: str) -> str | None:
    """Apply to differentiable subjects."""
    if not op.differentiable:
        return f"{op.name} is a backward pass itself: nothing shares its gradients through autograd"
    return None if subject.differentiable else "declared forward only (differentiable=False)"


def check(session: Session) -> list[Outcome]:
    """Run the subject with a residual branch, twice backwards, and once with its output changed."""
    seen = session.execute(experiment="verifier.checks.context:experiment")
    outcomes = [deviating(one) for one in seen.found_as(Branched).deviations]
    names = gradient_names(session.subject, session.op)
    for pass_, words in PASSES.items():
        outputs = {n: seen.outputs.get(f"{pass_} {n}") for n in names}
        judged = judge(session.truth, Observation(status="ok", outputs=outputs), names)
        outcomes += [replace(o, message=_said(o, words)) for o in judged]
    return outcomes


PASSES = {
    "first": "beside a residual branch",
    "second": "in a second backward pass through the same graph (retain_graph=True)",
    "changed": "after the output was changed in place (output.add_(r)), which raised no error",
}


def _said(outcome: Outcome, words: str) -> str:
    return f"{outcome.message} {words}" if outcome.verdict is Verdict.FAIL else outcome.message


@dataclass(frozen=True, kw_only=True)
class Branched:
    """What of a backward pass beside another branch is not as it is alone."""

    deviations: tuple[Deviation, ...]


def experiment(subject: Subject, case: Case, *, backend: Backend) -> Observation:
    """Differentiate norm(x) + r in three ways; runs in the child."""
    backend.begin()
    try:
        outputs, broken = _next_to_a_branch(subject, case, backend)
        outputs |= _changed_in_place(subject, case, backend)
        backend.finish()
    except UnusableError as error:
        return Observation(status="unusable", message=str(error))
    except Exception as error:
        return failure(error, backend)
    return Observation(status="ok", outputs=outputs, found=Branched(deviations=tuple(broken)))


Gradients = dict[str, torch.Tensor | None]


def _next_to_a_branch(subject: Subject, case: Case, backend: Backend) -> tuple[Gradients, list[Deviation]]:
    (output, *further), wanted, given = _forward(subject, case, backend)
    branch = torch.zeros_like(output.detach()).requires_grad_(True)
    total = output + branch
    before = [gradient.clone() for gradient in given]
    found: Gradients = {}
    broken: list[Deviation] = []
    for pass_ in ("first", "second"):
        gradients = passed_on(
            torch.autograd.grad,
            [total, *further],
            [*wanted.values(), branch],
            given,
            retain_graph=True,
            allow_unused=True,
        )
        found |= {f"{pass_} grad_{n}": g for n, g in zip(wanted, gradients, strict=False)}
        if not _same(gradients[-1], before[0]):
            text = "residual: in norm(x) + r the gradient of r is not grad_output: it was overwritten"
            broken.append(Deviation("residual", text))
        for gradient, kept in zip(given, before, strict=True):
            if not _same(gradient, kept):
                text = "grad_output: the backward pass wrote into the gradient that it was given"
                broken.append(Deviation("grad_output", text))
                gradient.copy_(kept)
    # Cloned, since a later pass may write into what an earlier one returned.
    return {n: None if g is None else g.clone() for n, g in found.items()}, list(dict.fromkeys(broken))


def _changed_in_place(subject: Subject, case: Case, backend: Backend) -> Gradients:
    """Add to the output in place, then differentiate; an error is the right answer of many."""
    (output, *further), wanted, given = _forward(subject, case, backend)
    try:
        changed = passed_on(output.add_, torch.ones_like(output.detach()))
        gradients = passed_on(
            torch.autograd.grad, [changed, *further], list(wanted.values()), given, allow_unused=True
        )
    except REFUSALS as error:
        if is_own(error):
            raise
        return {}
    return {f"changed grad_{n}": g for n, g in zip(wanted, gradients, strict=True)}


def _forward(
    subject: Subject, case: Case, backend: Backend
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor], list[torch.Tensor]]:
    call = lay_out(subject, case, device=backend.device(), gradients=True)
    returned = passed_on(subject.function, **call.arguments)
    outputs, gradients = call.differentiated(returned)
    wanted = {n: t for n, t in call.arguments.items() if isinstance(t, torch.Tensor) and t.requires_grad}
    return outputs, wanted, gradients


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool((bit_numbers(a) == bit_numbers(b)).all())
