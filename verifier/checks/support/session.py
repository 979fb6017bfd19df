"""One subject on one case, as a check sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch

from verifier.checks.support.truth import Truth
from verifier.execution.code_against_claim import contradictions, refined
from verifier.ops import Op, Setting, op
from verifier.records.case import Case
from verifier.records.compiled_code import CompiledCode, joined
from verifier.records.observation import Observation
from verifier.records.subject import Subject
from verifier.records.verdict import Outcome, Verdict


class StoppedError(Exception):
    """An execution that did not end well, with the outcome that says so."""

    def __init__(self, outcome: Outcome, detail: str = "") -> None:
        """Keep the outcome."""
        super().__init__(outcome.message)
        self.outcome = outcome
        self.detail = detail


class _Truths(dict[CompiledCode | None, Truth]):
    """Truths about one case by what is known of the code; the oracle is asked once for all of them."""

    def __init__(self, plain: Truth) -> None:
        super().__init__({None: plain})

    def __missing__(self, code: CompiledCode) -> Truth:
        plain = self[None]
        subject, setting = refined(plain.subject, plain.setting, code)
        if subject is plain.subject and setting is plain.setting:
            self[code] = plain
            return plain
        made = self[code] = plain.claimed_by(subject, setting)
        return made


_STOPPED = {
    "refused": Verdict.REFUSED,
    "crashed": Verdict.CRASH,
    "timeout": Verdict.TIMEOUT,
    "unusable": Verdict.FAIL,
    "undecided": Verdict.UNDECIDED,
    "error": Verdict.ERROR,
}
"""What an execution that did not end well means, by the status of its observation."""


def stopped(seen: Observation) -> Outcome:
    """Return what an execution that did not end well means."""
    verdict, left = _STOPPED[seen.status], seen.aftermath
    if left.machine_finding == "step_limit":  # it would go on for ever, as far as we can see
        verdict = Verdict.TIMEOUT
    return Outcome(
        verdict=verdict,
        message=seen.message,
        died=left.died,
        machine_finding=left.machine_finding,
        doubtful=left.not_imported,  # what was to follow the import never ran
    )


@dataclass(frozen=True, kw_only=True)
class Session:
    """One subject on one case at one place, as a check sees it.

    unlaunched: why no PASS may rest on its executions, those of sessions made of it by `replace` included.
    """

    subject: Subject
    case: Case
    backend: str
    setting: Setting
    run: Callable[..., Observation]
    unlaunched: list[str] = field(default_factory=list, repr=False, compare=False)
    _codes: list[CompiledCode | None] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def truth(self) -> Truth:
        """Exact results, and bounds that hold for everything that was executed so far."""
        return self._truths[self.compiled]

    @property
    def compiled(self) -> CompiledCode | None:
        """What is known of the code of all executions so far; None if that of any is unknown."""
        known = [code for code in self._codes if code is not None]
        return joined(known) if len(known) == len(self._codes) else None

    @cached_property
    def _truths(self) -> _Truths:
        return _Truths(Truth(subject=self.subject, case=self.case, setting=self.setting))

    @property
    def op(self) -> Op:
        """The op of the case."""
        return op(self.case.op)

    def execute(
        self, *, experiment: str = "verifier.execution.call_subject:execute", **options: object
    ) -> Observation:
        """Run the subject on the case (or run another experiment).

        Raises:
            StoppedError: it refused, crashed, hung or cannot be called as declared; nothing can be said
                about it, or the verifier itself failed.

        """
        return self.accept(self.run(self.subject, self.case, experiment=experiment, **options))

    def accept(self, seen: Observation) -> Observation:
        """Return what `run` saw, as one of the executions of this session.

        Raises:
            StoppedError: as `execute`.

        """
        if seen.status == "ok":
            self._codes.append(seen.compiled)
            if seen.unlaunched:
                self.unlaunched.append(seen.unlaunched)
            return seen
        raise StoppedError(stopped(seen), seen.detail)

    def contradictions(self, code: CompiledCode | None = None) -> list[Outcome]:
        """Return a FAIL for each point in which the code certainly is not what is declared.

        code: what is known of it (None: of all executions so far).
        """
        code = code or self.compiled
        found = () if code is None else contradictions(self.subject, self.case.dtype, code)
        return [
            Outcome(verdict=Verdict.FAIL, output="declaration", message=text, decided=1, wrong=1)
            for text in found
        ]

    def shape_outcomes(self, seen: Observation, names: tuple[str, ...]) -> list[Outcome]:
        """Return a FAIL for each named result that is missing, or has a wrong shape or dtype."""
        outcomes = []
        for name in names:
            wanted = self.op.expected(self.case, self.subject).get(name)
            problem = None
            if name not in seen.outputs:
                problem = self._undeclared(name)
            elif wanted is not None:
                problem = mismatch(name, seen.outputs[name], wanted.shape, wanted.dtype)
            if problem:
                outcomes.append(Outcome(verdict=Verdict.FAIL, output=name, message=problem))
        return outcomes

    def _undeclared(self, name: str) -> str | None:
        """Say that the op demands a result for an argument taken here, which the declaration leaves out."""
        argument = name.removeprefix("grad_")
        taken = argument in self.subject.signature and argument in self.case.given
        # Evaluation moves no running statistics, and neither does an input without elements.
        asked = name.startswith("grad_") or (self.case.scalars.get("training", True) and self.case.elements)
        if name not in self.op.outputs or not taken or not asked:
            return None
        return (
            f"{name} is neither in returns= nor in mutates= of the declaration, although {self.op.name} "
            f"demands it where {argument} is given: it is not judged"
        )


def mismatch(
    name: str, actual: torch.Tensor | None, shape: tuple[int, ...], dtype: torch.dtype
) -> str | None:
    """Say that a result is missing, or has another shape or dtype than this; None if it has not."""
    if actual is None:
        return f"{name} is None; a tensor of shape {shape} and dtype {_word(dtype)} is expected"
    if tuple(actual.shape) != shape:
        return f"{name} has shape {tuple(actual.shape)}; {shape} is expected"
    if actual.dtype != dtype:
        return f"{name} has dtype {_word(actual.dtype)}; {_word(dtype)} is expected"
    return None


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def result_names(subject: Subject, the_op: Op) -> tuple[str, ...]:
    """Return all results of an op and the gradients that a subject has to deliver."""
    return tuple(dict.fromkeys((*the_op.outputs, *gradient_names(subject, the_op))))


def gradient_names(subject: Subject, the_op: Op) -> tuple[str, ...]:
    """Return the gradients that a subject has to deliver."""
    if not the_op.differentiable:
        return tuple(n for n in the_op.outputs if n.startswith("grad_"))
    return tuple(f"grad_{n}" for n in the_op.differentiable if subject.gives_gradient(n))
