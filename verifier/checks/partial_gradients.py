"""A gradient does not depend on which others are asked for, nor on whether a result is used at all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import combinations

import torch

from verifier.cases.plan import Plan
from verifier.checks.support.attempts import Shown, few_cases, kept, outcomes_of, tried_in_turn, ways_of_op
from verifier.checks.support.session import Session
from verifier.execution.backend import Backend
from verifier.execution.call_subject import backward, forward, lay_out, mutated, named_results
from verifier.execution.ways_of_calling import CallingWay
from verifier.ops import Op
from verifier.ops import op as named_op
from verifier.records.case import Case
from verifier.records.observation import Observation
from verifier.records.subject import Subject
from verifier.records.verdict import Outcome

NAME = "partial_gradients"
ORDER = 127
DEMANDS = (
    "whichever arguments require a gradient, the kernel does not crash, and all results have the bits that "
    "they have when all arguments require one, or stay within their bounds; of several results that have "
    "gradients, each may be used alone, as if the gradients of the others were zeros"
)
WHY = "weights are frozen and inputs need no gradient every day, and most tests ask for all gradients at once"
CATCHES = (
    "gradient_of_bias_only_with_weight",
    "gradient_of_residual_only_with_input",
    "gradient_of_one_lost_in_long_rows_triton",
    "gradients_of_unused_output_taken_for_none",
    "weight_left_out_of_lone_gradient_triton",
)

MOST_REACHING = 2
"""Shapes that reach other kernels of the subject, most first: each has its own conditions on gradients."""


def plan(_subject: Subject, op: Op) -> Plan:
    """Ask for a few ordinary cases, and for shapes that launch other kernels: each with every choice."""
    return replace(few_cases(op, gradients=True), reaching=True, most_reaching=MOST_REACHING)


def skips(subject: Subject, op: Op, _dtype: str, _backend: str) -> str | None:
    """Apply to differentiable subjects."""
    if not op.differentiable:
        return f"{op.name} is a backward pass itself: autograd asks nothing of it"
    return None if subject.differentiable else "declared forward only (differentiable=False)"


def must_be_tried(subject: Subject) -> list[str]:
    """Return every choice of arguments that require a gradient, but for all, and each result alone."""
    choices = _choices(_asked(subject, subject.signature))
    return [*map(_words, choices), *map(_used, _results(subject)), *ways_of_op(subject)]


def check(session: Session) -> list[Outcome]:
    """Call the subject with every choice of arguments that require a gradient, then use one result alone."""
    outcomes = outcomes_of(session, session.execute(experiment=f"{__name__}:experiment"), same_code=False)
    for name in _results(session.subject):
        alone = replace(session, case=_with_zeros(session.case, name))
        seen = alone.execute(experiment=f"{__name__}:with_one_used", name=name)
        outcomes += outcomes_of(alone, seen, same_code=False)
    return outcomes


def _results(subject: Subject) -> list[str]:
    """Return the results that gradients come to, if there are several."""
    found = [name for name in named_op(subject.op).incoming if name in subject.returns]
    return found if len(found) > 1 else []


def _with_zeros(case: Case, name: str) -> Case:
    """Return the case with zeros for the gradients of all results but one."""
    incoming = named_op(case.op).incoming
    others = {
        g: torch.zeros_like(case.given[g]) for n, g in incoming.items() if n != name and g in case.given
    }
    return replace(case, tensors={**case.tensors, **others})


def _asked(subject: Subject, names: Collection[str]) -> list[str]:
    """Return which of these arguments may require a gradient."""
    return [n for n in named_op(subject.op).differentiable if subject.gives_gradient(n) and n in names]


def _choices(names: Sequence[str]) -> list[tuple[str, ...]]:
    return [chosen for count in range(len(names)) for chosen in combinations(names, count)]


def _words(chosen: tuple[str, ...]) -> str:
    if not chosen:
        return "where no argument requires a gradient"
    return f"where {' and '.join(chosen)} alone require{'s' * (len(chosen) == 1)} a gradient"


def _used(name: str) -> str:
    return f"where {name} alone is used"


def dry_ways(subject: Subject, _backend: Backend) -> dict[str, CallingWay]:
    """Return the choices, and results that are used alone, as ways of a dry run."""
    choices = _choices(_asked(subject, subject.signature))
    chosen = {_words(c): CallingWay(asked=frozenset(c), backward="inside" if c else "never") for c in choices}
    return chosen | {_used(name): CallingWay(used=name) for name in _results(subject)}


def experiment(subject: Subject, case: Case, *, backend: Backend) -> Observation:
    """Call the subject plainly, then with every choice of gradients; runs in the child."""

    def way(chosen: tuple[str, ...]) -> Callable[[], Shown]:
        return lambda: _with_gradients(subject, case, backend, chosen)

    choices = _choices(_asked(subject, case.given))
    return tried_in_turn(subject, case, backend, {_words(c): way(c) for c in choices}, gradients=True)


def _with_gradients(subject: Subject, case: Case, backend: Backend, chosen: tuple[str, ...]) -> Shown:
    call = lay_out(subject, case, device=backend.device(), gradients=True)
    for name in _asked(subject, case.given):
        call.placed[name].tensor.requires_grad_(name in chosen)
    outputs = forward(subject, call)
    results = named_results(subject, outputs) | mutated(subject, call)
    return Shown(results=(kept(results | (backward(outputs, call) if chosen else {})),))


def with_one_used(subject: Subject, case: Case, *, backend: Backend, name: str) -> Observation:
    """Call the subject plainly, then differentiate one of its results alone; runs in the child."""

    def alone() -> Shown:
        call = lay_out(subject, case, device=backend.device(), gradients=True)
        outputs = forward(subject, call)
        results = named_results(subject, outputs) | mutated(subject, call)
        place = subject.returns.index(name)
        used = replace(call, incoming=tuple(one for one in call.incoming if one[0] == place))
        # Autograd says None of what a result does not depend on, and means zeros.
        found = {
            n: torch.zeros_like(case.given[n.removeprefix("grad_")]) if gradient is None else gradient
            for n, gradient in backward(outputs, used).items()
        }
        return Shown(results=(kept(results | found),))

    return tried_in_turn(subject, case, backend, {_used(name): alone}, gradients=True)
