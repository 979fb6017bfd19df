"""The standard experiment: places a case in memory, calls the subject, collects outputs and gradients."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from strategies.layouts import Layout
from strategies.placement import Placed
from verifier.execution.backend import Backend, Power
from verifier.execution.host_arithmetic import HostArithmetic
from verifier.execution.missing_packages import missing_package
from verifier.execution.poisoned_memory import fresh_memory
from verifier.execution.reach_recording import recorded, wrapper_followed
from verifier.machine.culprit import in_backward, is_own, passed_on
from verifier.machine.culprit import place as place_of
from verifier.machine.execute.findings import UnsupportedFeature
from verifier.ops import op
from verifier.records.case import GIVEN_NONE, LEFT_OUT, Case
from verifier.records.observation import Deviation, Observation, Status
from verifier.records.printable import said, text_of
from verifier.records.subject import Subject
from verifier.subjects.process_settings import settings_kept

REFUSALS = (ValueError, TypeError, NotImplementedError, RuntimeError, AssertionError)
"""Errors that refuse a case if they say why: published wrappers check their arguments by `assert`, too."""
GUARD_ELEMENTS = 64


class UnusableError(Exception):
    """The declaration does not fit the function; the message says how."""


class InMemory(Protocol):
    """A tensor that was put into memory, and what is watched about it: `strategies.placement.Placed`, say."""

    @property
    def tensor(self) -> torch.Tensor:
        """What the subject gets."""

    def damage(self) -> Iterable[object]:
        """Say what was written outside of the tensor."""

    def value_damage(self) -> Iterable[object]:
        """Say what was written in the tensor."""


class Placer(Protocol):
    """Puts a tensor of a case into memory."""

    def __call__(
        self, name: str, layout: Layout, values: torch.Tensor, /, *, guard_elements: int, poison: str
    ) -> InMemory:
        """Return the tensor of that name, on the device on which its values lie."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A case in memory, ready to be handed to a subject.

    `arguments` are what the subject is called with, `placed` the memory of every tensor. `incoming`: places
    among what the subject returns, and the names of the tensors that are the gradients of these results.
    """

    arguments: Mapping[str, object]
    placed: Mapping[str, InMemory]
    incoming: tuple[tuple[int, str], ...] = ((0, "grad_output"),)

    def differentiated(self, outputs: object) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the results that gradients come to, of all that the subject returned, and the gradients.

        A sum that is returned beside the output depends on no weight: where that alone requires a gradient,
        none comes back from it.

        Raises:
            UnusableError: no backward pass is connected to the first of them.

        """
        given = tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)
        told = [(given[place], name) for place, name in self.incoming if place < len(given)]
        found = [(t, name) for t, name in told if isinstance(t, torch.Tensor) and t.requires_grad]
        if not found or found[0][1] != told[0][1]:
            raise UnusableError(
                "the output does not require grad although its inputs do: no backward pass is connected "
                "(declare differentiable=False if there is none)"
            )
        return [t for t, _ in found], [self.placed[name].tensor for _, name in found]


NOT_LAUNCHED = "the subject launched no kernel: nothing can be said about one"


def answer(
    experiment: Callable[..., Observation],
    subject: Subject,
    case: Case,
    *,
    backend: Backend,
    **options: object,
) -> Observation:
    """Run an experiment; it is `unlaunched` where there was something to compute and no kernel ran.

    experiment: (subject, case, backend=, ...) -> Observation, as `execute`. What was right then says
    nothing of a kernel, but what went wrong went wrong.
    """
    before = backend.launched(subject)
    with recorded(subject, backend) as recording:
        seen = experiment(subject, case, backend=backend, **options)
        seen = replace(seen, reach=recording.news())
    idle = before is not None and backend.launched(subject) == before
    computes = all(tensor.numel() for tensor in case.given.values())
    if seen.status == "ok" and idle and computes and not seen.lacking:
        return replace(seen, unlaunched=NOT_LAUNCHED)
    return seen


def execute(
    subject: Subject,
    case: Case,
    *,
    backend: Backend,
    gradients: bool = False,
    poison: str | None = None,
    neighbours: str | None = None,
    placer: Placer | None = None,
    accumulates: bool = False,
) -> Observation:
    """Call the subject on the case; with `gradients`, also its backward pass.

    poison: fill fresh memory with one of `poisoned_memory.POISONS` and put red zones about it.
    neighbours: what lies between and around the elements of the arguments, if not the same poison.
    placer: puts each tensor of the case into memory; without it `Layout.place` does.
    accumulates: see `backward`.
    """
    between = neighbours or poison or "nan"
    try:
        with backend.unfollowed() if placer is None else nullcontext():
            call = lay_out(
                subject, case, device=backend.device(), gradients=gradients, poison=between, placer=placer
            )
    except UnusableError as error:
        return Observation(status="unusable", message=text_of(error))
    backend.begin()
    try:
        with settings_kept() as settings, fresh_memory(poison) as memory, _watched(backend) as host:
            outputs = forward(subject, call)
            results = named_results(subject, outputs) | mutated(subject, call)
            if gradients:
                results |= backward(outputs, call, accumulates=accumulates)
            backend.finish()
    except UnusableError as error:
        return Observation(status="unusable", message=text_of(error))
    except Exception as error:
        return failure(error, backend)
    if (kept := _kept_back(backend)) is not None:
        return failure(kept, backend)
    with backend.unfollowed():
        damage = (*_damage(call.placed, subject.mutates), *memory.damage())
    code = None if host is None else backend.compiled(frozenset(host.seen))
    return Observation(status="ok", outputs=results, damage=damage, compiled=code, settings=settings.changed)


def _watched(backend: Backend) -> AbstractContextManager[HostArithmetic | None]:
    """Watch the host where the backend has the code of the kernels: a bound needs to know both."""
    return HostArithmetic() if Power.READS_CODE in backend.powers else nullcontext()


def lay_out(
    subject: Subject,
    case: Case,
    *,
    device: str,
    gradients: bool = False,
    poison: str = "nan",
    placer: Placer | None = None,
) -> Call:
    """Place every tensor of the case in memory and match arguments with the subject's signature.

    Raises:
        UnusableError: the subject asks for an argument that its op does not have.

    """
    placed = {}
    for name, values in case.given.items():
        layout = case.layouts.get(name, Layout())
        put: Placer = _placed_as_laid_out if placer is None else placer
        placed[name] = put(name, layout, values.to(device), guard_elements=GUARD_ELEMENTS, poison=poison)
    arguments: dict[str, object] = {}
    strange = []
    for name, parameter in subject.signature.items():
        if name in case.scalars.get(LEFT_OUT, ()):
            continue
        if name in case.tensors:
            arguments[name] = placed[name].tensor if name in placed else None
        elif name in case.scalars:
            absent = name in case.scalars.get(GIVEN_NONE, ())
            arguments[name] = None if absent else case.scalars[name]
        elif parameter.default is parameter.empty:
            strange.append(repr(name))
    if strange:
        known = ", ".join(sorted({*case.tensors, *case.scalars} - {"grad_output", LEFT_OUT, GIVEN_NONE}))
        raise UnusableError(
            f"{subject.name}() asks for {', '.join(strange)}, which {case.op} does not have; it has {known}"
        )
    if gradients:
        for name in arguments:
            if name in placed and name in op(case.op).differentiable and subject.gives_gradient(name):
                placed[name].tensor.requires_grad_(True)
    results = list(subject.returns)
    incoming = (
        (results.index(output) if output in results else 0, gradient)
        for output, gradient in op(case.op).incoming.items()
        if output in results or output == "output"
    )
    there = tuple((place, name) for place, name in incoming if name in placed)
    return Call(arguments=arguments, placed=placed, incoming=there)


def _placed_as_laid_out(
    _name: str, layout: Layout, values: torch.Tensor, /, *, guard_elements: int, poison: str
) -> Placed:
    return layout.place(values, guard_elements=guard_elements, poison=poison)


def forward(subject: Subject, call: Call) -> object:
    """Call the subject; returns what it returns."""
    positional = [n for n, p in subject.signature.items() if p.kind is p.POSITIONAL_ONLY]
    keywords = {n: v for n, v in call.arguments.items() if n not in positional}
    tensors = {n: t for n, t in call.arguments.items() if isinstance(t, torch.Tensor)}
    kind = tuple((n, t.dtype, t.requires_grad) for n, t in tensors.items())
    with wrapper_followed(("forward", kind)):
        return passed_on(subject.function, *(call.arguments[n] for n in positional), **keywords)


def named_results(subject: Subject, outputs: object) -> dict[str, torch.Tensor | None]:
    """Name what the subject returned.

    Raises:
        UnusableError: it returned another number of things, or something that is no tensor; or a backward
            pass of which no result is declared as a gradient.

    """
    given = tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)
    described = op(subject.op)
    if not described.differentiable and set(described.outputs).isdisjoint(subject.returns):
        raise UnusableError(
            f"{subject.name}() is declared to return {', '.join(subject.returns)}, and {subject.op} gives "
            f"{', '.join(described.outputs)}: no result could be judged (declare returns=...)"
        )
    if len(given) != len(subject.returns):
        raise UnusableError(
            f"{subject.name}() returned {len(given)} thing(s); its declaration says returns={subject.returns}"
        )
    for name, value in zip(subject.returns, given, strict=True):
        if not isinstance(value, torch.Tensor | None):
            raise UnusableError(
                f"{subject.name}() returned {type(value).__name__} as {name}; a tensor is expected"
            )
        if value is not None and (value.layout != torch.strided or value.is_meta):
            raise UnusableError(
                f"{subject.name}() returned a tensor as {name} that is no plain memory "
                f"(layout {value.layout}, device {value.device})"
            )
        if value is not None and _answers_for_itself(type(value)):
            raise UnusableError(
                f"{subject.name}() returned a {type(value).__name__} as {name}, a kind of tensor of its own: "
                "what torch's operations make of it is for its class to say"
            )
    return {n: None if v is None else v.detach() for n, v in zip(subject.returns, given, strict=True)}


def _answers_for_itself(kind: type[torch.Tensor]) -> bool:
    """Whether a class of tensors has a say in torch's operations on them; a parameter's has none."""
    plain = (torch.Tensor, torch.nn.Parameter)
    return any(
        getattr(kind, name, None) not in [getattr(one, name, None) for one in plain]
        for name in ("__torch_function__", "__torch_dispatch__")
    )


def mutated(subject: Subject, call: Call) -> dict[str, torch.Tensor | None]:
    """Return what the subject left in the arguments that it changes in place."""
    changed = {name: call.arguments.get(name) for name in subject.mutates}
    return {name: t.detach().clone() for name, t in changed.items() if isinstance(t, torch.Tensor)}


def backward(
    outputs: object, call: Call, *, retain_graph: bool = False, accumulates: bool = False
) -> dict[str, torch.Tensor | None]:
    """Return the gradients of the arguments that require one, by name, from what the subject returned.

    accumulates: take them where `Tensor.backward` leaves them, after all hooks that the subject put on its
    arguments; `torch.autograd.grad` skips those that wait for a gradient to be accumulated.

    Raises:
        UnusableError: no backward pass is connected to the output.

    """
    wanted = {n: t for n, t in call.arguments.items() if isinstance(t, torch.Tensor) and t.requires_grad}
    differentiated, gradients = call.differentiated(outputs)
    with wrapper_followed(("backward", tuple((n, t.dtype) for n, t in wanted.items()))):
        if accumulates:
            passed_on(torch.autograd.backward, differentiated, gradients, retain_graph=retain_graph)
            left = {f"grad_{name}": tensor.grad for name, tensor in wanted.items()}
            for tensor in wanted.values():
                tensor.grad = None
            return left
        found = passed_on(
            torch.autograd.grad,
            differentiated,
            list(wanted.values()),
            gradients,
            retain_graph=retain_graph,
            allow_unused=True,
        )
    return {f"grad_{name}": g for name, g in zip(wanted, found, strict=True)}


def _kept_back(backend: Backend) -> Exception | None:
    """Return what a launch raised, though the subject caught it: a device would not have told it so."""
    return backend.failed()


def _lacking(error: Exception, backend: Backend) -> str | None:
    return backend.lacks(error)


def failure(error: Exception, backend: Backend) -> Observation:
    """Return what an exception means: of the subject a refusal before the first launch, or a crash.

    An error of torch's own backward pass is no refusal: the forward pass has taken the case by then.
    What the machine lacks says nothing about the subject, and neither does a package that is not installed
    here or a failure of the verifier itself.
    """
    error = _kept_back(backend) or error
    detail = "".join(traceback.format_exception(error))
    lacking = text_of(error) if isinstance(error, UnsupportedFeature) else _lacking(error, backend)
    if lacking:
        return Observation(status="undecided", message=lacking, detail=detail)
    text = said(error, first_line=True)
    if is_own(error):
        text = f"{text} (in {place_of(error)})"
        return Observation(status="error", message=text, detail=detail)
    clear = isinstance(error, REFUSALS) and text_of(error).strip() != ""
    refused = clear and backend.launches() == 0 and not in_backward(error)
    left = backend.aftermath(error)
    if not refused and not left.died and (missing := missing_package(error)):
        left = replace(left, not_imported=True)
        return Observation(status="undecided", message=missing, detail=detail, aftermath=left)
    status: Status = "refused" if refused else "crashed"
    return Observation(status=status, message=text, detail=detail, aftermath=left)


def _damage(placed: Mapping[str, InMemory], mutates: tuple[str, ...]) -> Iterator[Deviation]:
    for name, one in placed.items():
        for damage in one.damage():
            yield Deviation(name, f"{name}: {damage}")
        if name not in mutates:
            for damage in one.value_damage():
                yield Deviation(name, f"{name} is an input and was written: {damage}")
