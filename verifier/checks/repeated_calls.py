"""A call leaves nothing behind: not for the next one, and not for the results of an earlier one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch

from verifier.cases.plan import Plan
from verifier.cases.recipe import ORDINARY, Recipe, build
from verifier.checks.support.attempts import (
    FEW_SHAPES,
    Shown,
    few_cases,
    kept,
    outcomes_of,
    shown_in_a_copy,
    tried_in_turn,
    ways_of_op,
)
from verifier.checks.support.bits import how_different
from verifier.checks.support.session import Session
from verifier.execution.backend import Backend
from verifier.execution.backends import backend as backend_of
from verifier.execution.call_subject import (
    REFUSALS,
    Call,
    backward,
    forward,
    lay_out,
    mutated,
    named_results,
)
from verifier.execution.ways_of_calling import CallingWay
from verifier.machine.culprit import is_own
from verifier.ops import Op
from verifier.ops import op as named_op
from verifier.records.case import Case, as_bytes, from_document, to_document
from verifier.records.observation import Observation
from verifier.records.printable import said
from verifier.records.subject import Subject
from verifier.records.verdict import Outcome, Verdict

NAME = "repeated_calls"
ORDER = 128
DEMANDS = (
    "the first call of a process, one after a call with smaller extents, a second call, a call on arguments "
    "that were changed in place, and two calls before their backward passes give what single calls give; no "
    "later call changes an earlier result; after a change of an "
    "argument the backward pass raises an error, or gives the gradients of the values that the forward pass"
    " saw"
)
WHY = (
    "a kernel that keeps a buffer, a converted weight or a context between calls is right in every test "
    "that calls it once"
)
CATCHES = (
    "adds_to_the_last_sums",
    "output_buffer_shared",
    "statistics_kept_on_function",
    "weight_converted_once",
    "statistics_of_input_remembered",
    "input_saved_unseen",
    "weight_saved_unseen",
    "eps_larger_in_first_call_triton",
    "buffer_of_first_call_kept_triton",
    "statistics_read_again_in_backward",
)

MOST_REACHING = 2
"""Shapes that reach other kernels of the subject, most first: what is kept between calls may be theirs."""

FIRST = "in the first call of a process"
AFTER = "in a call after one with smaller extents alone"
SMALL = (2, 8)
"""Rows and columns of the smaller call."""
SECOND = "in a second call on the same tensors"
LATER = "after a later call with other numbers"
CHANGED = "in a call on tensors changed in place since the last call"
BOTH = "in a backward pass after two calls"
AGAIN = "in a second backward pass through the same graph"


def _changed_before(name: str) -> str:
    return f"where {name} was changed in place before the backward pass"


def plan(subject: Subject, op: Op) -> Plan:
    """Ask for a few ordinary cases, and for shapes that launch other kernels: each is tried in every way."""
    few = few_cases(op, gradients=subject.differentiable or not op.differentiable)
    return replace(few, reaching=True, most_reaching=MOST_REACHING)


def must_be_tried(subject: Subject) -> list[str]:
    """Return every way of calling that there is for the subject."""
    the_op = named_op(subject.op)
    taken = [name for name in the_op.differentiable if name in subject.signature]
    changed = [name for name in _changed_between(the_op) if name in subject.signature]
    backwards = [BOTH, *map(_changed_before, changed), *([AGAIN] if the_op.own else [])]
    ways = [FIRST, AFTER, SECOND, LATER, CHANGED, *(backwards if taken and subject.differentiable else [])]
    return [*ways, *ways_of_op(subject)]


def check(session: Session) -> list[Outcome]:
    """Call the subject several times in one process, and first calls in one that has not called it yet."""
    gradients = bool(session.op.differentiable) and session.subject.differentiable
    dear = backend_of(session.backend).child_per_subject
    first = not dear and _is_for_first_calls(session)
    small = _smaller(session) if first else None
    seen = session.execute(
        experiment=f"{__name__}:experiment",
        gradients=gradients,
        first=first,
        small=None if small is None else to_document(small, keep=as_bytes),
        fresh=first,
    )
    outcomes = outcomes_of(session, seen, same_code=True)
    if dear:
        why = "a process on a device takes too long to start for one call"
        outcomes.append(Outcome(verdict=Verdict.SKIPPED, message=why, tried=(FIRST, AFTER)))
    elif first and small is None:
        why = "there is no smaller case"
        outcomes.append(Outcome(verdict=Verdict.SKIPPED, message=why, tried=(AFTER,)))
    return outcomes


def _is_for_first_calls(session: Session) -> bool:
    """Return whether first calls are made: with all tensors that there may be, and not in each small shape.

    A process takes a tenth of a second to start: of the small shapes the first is enough, unless it lies
    outside the domain or known defects may leave it out.
    """
    case, subject = session.case, session.subject
    levels = plan(subject, session.op).parameters_of(session.op, subject)
    gives_all = all(name in case.given for name, given in levels.items() if any(given))
    small, rank = FEW_SHAPES[0], case.given["input"].dim()
    outside = subject.domain is not None and any(subject.domain.exceeded(*small, rank=rank))
    sure = not outside and not any(defect.concerns(NAME) for defect in subject.known_defects)
    return gives_all and not (sure and (case.rows, case.columns) in FEW_SHAPES[1:])


def _smaller(session: Session) -> Case | None:
    """Return a case like this one with small extents, None where there is none inside the domain."""
    case, subject, (rows, columns) = session.case, session.subject, SMALL
    given = {
        name: ORDINARY if name in case.given else None for name in ("weight", "bias", *session.op.varied)
    }
    recipe = Recipe(
        rows=rows,
        columns=columns,
        weight=given["weight"],
        bias=given["bias"],
        further=tuple((name, given[name]) for name in session.op.varied),
    )
    made = build(session.op, subject, case.dtype, recipe, gradients=True)
    if made is None or made.elements >= case.elements:
        return None
    rank = made.given["input"].dim()
    outside = subject.domain is not None and any(subject.domain.exceeded(rows, columns, rank=rank))
    known = any(d.concerns(NAME) and (d.where is None or d.where(made)) for d in subject.known_defects)
    return None if outside or known else made


# -- in the child --------------------------------------------------------------------------------------


def experiment(
    subject: Subject,
    case: Case,
    *,
    backend: Backend,
    gradients: bool,
    first: bool,
    small: Mapping[str, object] | None,
) -> Observation:
    """Call the subject plainly, then in each way.

    first: whether this process has not called it yet. small: a case that comes before in a copy of it.
    """
    calls = _Calls(subject, case, backend, gradients)
    ahead: dict[str, Shown | Observation] = {}
    if small is not None:
        ahead[AFTER] = shown_in_a_copy(backend, partial(calls.after, from_document(small)))
    ways: dict[str, Callable[[], Shown]] = {SECOND: calls.second, LATER: calls.later, CHANGED: calls.changed}
    if gradients:
        ways[BOTH] = calls.both
        changed = [n for n in _changed_between(calls.op) if n in case.given and n in subject.signature]
        ways |= {_changed_before(name): partial(calls.changed_before, name) for name in changed}
        if calls.op.own:  # of norms, the check `context` judges it
            ways[AGAIN] = calls.again
    return tried_in_turn(
        subject,
        case,
        backend,
        ways,
        gradients=gradients,
        first_as=FIRST if first else "",
        ahead=ahead,
    )


def dry_ways(_subject: Subject, _backend: Backend) -> dict[str, CallingWay]:
    """Return the calls of a fresh process as ways of a dry run."""
    return {FIRST: CallingWay(history="first"), AFTER: CallingWay(history="after", small=(*SMALL, 0))}


class _Calls:
    """Calls of one subject with the numbers of a case, and with others."""

    def __init__(self, subject: Subject, case: Case, backend: Backend, gradients: bool) -> None:
        self.subject, self.case, self.backend, self.gradients = subject, case, backend, gradients
        self.op = named_op(case.op)
        self.other = _other_numbers(self.op, case)

    def laid_out(self, case: Case) -> Call:
        return lay_out(self.subject, case, device=self.backend.device(), gradients=self.gradients)

    def results(self, outputs: object, call: Call) -> dict[str, torch.Tensor | None]:
        """Return what a call returned, and its gradients."""
        found = named_results(self.subject, outputs)
        return found | (backward(outputs, call) if self.gradients else {})

    def called(self, call: Call) -> dict[str, torch.Tensor | None]:
        """Call the subject, forward and backward."""
        return self.results(forward(self.subject, call), call)

    def after(self, small: Case) -> Shown:
        """Call with another case first; where that ends in an error, cases of its own tell."""
        try:
            self.called(self.laid_out(small))
            self.backend.finish()
            failed = self.backend.failed()
        except Exception as error:
            if is_own(error):
                raise
            failed = error
        if failed is not None:
            self.backend.begin()  # what failed is not of the case
            return Shown(excused=f"the smaller case ends in an error: {said(failed, first_line=True)}")
        call = self.laid_out(self.case)
        outputs = forward(self.subject, call)
        return Shown(results=(kept(self.results(outputs, call) | mutated(self.subject, call)),))

    def second(self) -> Shown:
        """Call twice; what is mutated has been mutated twice then, and is not compared."""
        call = self.laid_out(self.case)
        self.called(call)
        return Shown(results=(kept(self.called(call)),))

    def later(self) -> Shown:
        """Look at results again after a call with other numbers."""
        found = self.called(self.laid_out(self.case))
        before = kept(found)
        self.called(self.laid_out(self.other))
        words = "from those before it"
        unlike = ((name, how_different(before[name], found[name], words)) for name in found)
        return Shown(broken=tuple((name, how) for name, how in unlike if how is not None))

    def changed(self) -> Shown:
        """Call with other numbers first, then put those of the case into the same tensors."""
        call = self.laid_out(self.other)
        self.called(call)
        for name, values in self.case.given.items():
            _put(call, name, values)
        found = self.called(call)
        return Shown(results=(kept(found | mutated(self.subject, call)),))

    def both(self) -> Shown:
        """Differentiate after another call has come between, in either order of the two backward passes."""
        found = []
        for last in (False, True):
            call, other = self.laid_out(self.case), self.laid_out(self.other)
            outputs = forward(self.subject, call)
            others = forward(self.subject, other)
            if last:
                backward(others, other)
            found.append(kept(self.results(outputs, call)))
            if not last:
                backward(others, other)
        return Shown(results=tuple(found))

    def again(self) -> Shown:
        """Differentiate twice; copies, since the second pass may write into what the first returned."""
        call = self.laid_out(self.case)
        outputs = forward(self.subject, call)
        first = kept(backward(outputs, call, retain_graph=True))
        return Shown(results=(first, kept(backward(outputs, call))))

    def changed_before(self, name: str) -> Shown:
        """Change an argument between the passes; torch tells of it where the kernel let torch save it."""
        call = self.laid_out(self.case)
        outputs = forward(self.subject, call)
        state = name not in self.op.differentiable
        _put(call, name, _other_state(self.case.given[name]) if state else self.other.given[name])
        try:
            return Shown(results=(kept(backward(outputs, call)),))
        except REFUSALS as error:
            if is_own(error):
                raise
            return Shown()


def _changed_between(op: Op) -> tuple[str, ...]:
    """Name what is changed between the passes: arguments that have a gradient, and running statistics."""
    return (*op.differentiable, *(name for name in op.tensors if name in op.outputs))


def _other_state(values: torch.Tensor) -> torch.Tensor:
    """Return other running statistics: a variance stays one."""
    return 0.5 * values.flip(-1) + 0.25


def _put(call: Call, name: str, values: torch.Tensor) -> None:
    with torch.no_grad():
        call.placed[name].tensor.copy_(values)


def _other_numbers(op: Op, case: Case) -> Case:
    """Return the case with other numbers, all finite and none larger: halved, negative and turned round."""
    names = (
        {*op.differentiable, *op.incoming.values()} if op.differentiable else {*op.tensors} - {*op.derived}
    )
    changed: Mapping[str, torch.Tensor] = {
        name: -0.5 * (t.flip(-1) if t.dim() else t) for name, t in case.given.items() if name in names
    }
    return replace(case, tensors={**case.tensors, **changed})
