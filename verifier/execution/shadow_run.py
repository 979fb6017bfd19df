"""Runs a subject with a shadow for every float, through its unmodified wrapper."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from strategies.layouts import Layout
from strategies.placement import Placed
from verifier.execution.backend import Backend
from verifier.execution.call_subject import UnusableError, execute, failure, lay_out
from verifier.machine.arithmetic.numerics import Array as Shadows
from verifier.machine.arithmetic.numerics import decode_bf16
from verifier.machine.culprit import passed_on
from verifier.records.case import Case
from verifier.records.observation import Observation
from verifier.records.subject import Subject

if TYPE_CHECKING:
    from verifier.arithmetic.formats import Array
    from verifier.machine.in_force import MachineSession
    from verifier.machine.shadow.slots import ShadowArithmetic, Slots

ShadowsOf = Mapping[str, Shadows]
"""For each tensor of a case its shadows, an array of the tensor's shape."""


@contextmanager
def shadow_session(arithmetic: ShadowArithmetic, *, lanes: int | None = None) -> Iterator[MachineSession]:
    """Give floats shadows of an arithmetic; what is inside runs on the device of the machine in force.

    lanes: of a wave, where shadows are so large that fewer of them are faster (None: the machine's own).
    """
    from verifier.machine import current, session

    playing = current()
    assert playing is not None, "shadows are kept in the process of the machine alone"
    machine = playing.machine if lanes is None else replace(playing.machine, lanes_per_wave=lanes)
    with session(machine=machine, arithmetic=arithmetic) as opened:
        opened.tuning = playing.tuning.anew()
        yield opened


def execute_with_shadows(
    subject: Subject,
    case: Case,
    *,
    backend: Backend,
    opened: MachineSession,
    given: ShadowsOf,
    gradients: bool,
    around: object = None,
) -> tuple[Observation, dict[str, Shadows]]:
    """Execute once under the session's arithmetic; also return the shadows of what came out, by name.

    given: the shadows that tensors of the case start with; the others have none. around: the shadow of the
    memory between the elements of those tensors.
    """
    slots = opened.slots
    assert slots is not None

    def put(
        name: str, layout: Layout, values: torch.Tensor, /, *, guard_elements: int, poison: str
    ) -> Placed:
        placed = layout.place(values, guard_elements=guard_elements, poison=poison)
        if name in given and values.is_floating_point():
            if around is not None:
                whole = _storage(placed.tensor)
                slots.set(whole, np.full(tuple(whole.shape), around))
            slots.set(placed.tensor, given[name])
        return placed

    seen = execute(subject, case, backend=backend, gradients=gradients, placer=put)
    return seen, shadows_of(opened, seen.outputs) if seen.status == "ok" else {}


def execute_backward_with_shadows(
    subject: Subject, case: Case, *, backend: Backend, opened: MachineSession, given: ShadowsOf
) -> tuple[Observation, dict[str, Shadows]]:
    """Run the forward pass without shadows, then the backward pass with those given.

    What the forward pass computed and saved, the statistics, has no shadows; an input that it saved has.
    """
    outputs: dict[str, torch.Tensor | None] = {}

    def both() -> Observation:
        assert opened.slots is not None
        call = lay_out(subject, case, device=backend.device(), gradients=True)
        returned = passed_on(subject.function, **call.arguments)
        differentiated, gradients = call.differentiated(returned)
        for name, values in given.items():
            if call.placed[name].tensor.is_floating_point():
                opened.slots.set(call.placed[name].tensor.detach(), values)
        wanted = {n: t for n, t in call.arguments.items() if isinstance(t, torch.Tensor) and t.requires_grad}
        found = passed_on(
            torch.autograd.grad, differentiated, list(wanted.values()), gradients, allow_unused=True
        )
        outputs.update({f"grad_{name}": g for name, g in zip(wanted, found, strict=True)})
        return Observation(status="ok")

    seen = attempt(backend, both)
    return seen, shadows_of(opened, outputs) if seen.status == "ok" else {}


def shadows_of(opened: MachineSession, outputs: Mapping[str, torch.Tensor | None]) -> dict[str, Shadows]:
    """Return the shadows of results by name; what is missing or no float has none."""
    assert opened.slots is not None
    floats = {n: t.detach() for n, t in outputs.items() if t is not None and t.is_floating_point()}
    return {name: opened.slots.get(tensor) for name, tensor in floats.items()}


def _storage(tensor: torch.Tensor) -> torch.Tensor:
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return torch.as_strided(tensor.detach(), (count,), (1,), 0)


@dataclass(frozen=True, kw_only=True)
class LostShadows:
    """What a run lost of its shadows.

    values: values without a shadow. desynchronised: shadows of other bits than their float's. broken: what
    changed bits of floats. uncovered: operations between launches that are not followed. steered_apart:
    choices that the lifted values would have made otherwise.
    """

    values: int = 0
    desynchronised: int = 0
    broken: tuple[str, ...] = ()
    uncovered: tuple[str, ...] = ()
    steered_apart: int = 0

    @property
    def words(self) -> str:
        """Which shadows were lost, in words; nothing if none was."""
        said = (
            (self.values, f"{self.values} value(s) without a shadow"),
            (self.desynchronised, f"{self.desynchronised} shadow(s) of other bits"),
            (self.broken, f"bits of floats changed by {_listed(self.broken)}"),
            (
                self.uncovered,
                f"operations between launches that are not followed: {_listed(self.uncovered)}",
            ),
            (
                self.steered_apart,
                f"{self.steered_apart} choice(s) that the lifted values would have made otherwise",
            ),
        )
        return "; ".join(words for count, words in said if count)


class Lost:
    """Counts values that were read without their shadow although they are no plain constants.

    A value without a shadow is lifted from its float: right for what was never computed (a mask's 0, eps,
    a power of two that an exponential is scaled by, a register that a guarded load left as it was), wrong for
    a result whose shadow was lost on the way.
    """

    def __init__(self, slots: Slots, case: Case, poison: int | None = None) -> None:
        """Listen to the slots of one session; poison: byte that fills its registers and shared memory."""
        self.counters, slots.listener = slots.counters, self
        scalars = [float(v) for v in case.scalars.values() if isinstance(v, float)]
        plain = [float(np.float32(s)) for s in scalars] + scalars
        if poison is not None:
            unwritten = np.full(8, poison, dtype=np.uint8)
            plain += [float(unwritten.view(kind)[0]) for kind in ("f2", "f4", "f8")]
            plain.append(float(decode_bf16(unwritten.view("u2"))[0]))
        self.plain = np.unique(np.array(plain, dtype=np.float64))
        self.values = 0

    def lifted(self, values: Array, kind: str) -> None:
        """Make nothing of values that are lifted, of which those that are read count."""

    def read_without_shadow(self, values: Array, kind: str, tags: Array) -> None:
        """Count what has been lost."""
        self.values += self.lost_of(values, kind, tags)

    def lost_of(self, values: Array, kind: str, tags: Array) -> int:
        """Count the values that have no shadow and should have one."""
        wide = (decode_bf16(values) if kind == "bf16" else values).astype(np.float64)
        wide, without = np.broadcast_arrays(wide, tags == 0)
        wide = wide[without]
        mantissa, _ = np.frexp(wide[np.isfinite(wide)])
        computed = (mantissa != 0) & (np.abs(mantissa) != 0.5)
        return int(np.sum(computed & ~np.isin(wide[np.isfinite(wide)], self.plain)))

    def counted(self, steered_apart: int = 0) -> LostShadows:
        """Return what was lost so far; steered_apart: see `LostShadows`."""
        counters = self.counters
        return LostShadows(
            values=self.values,
            desynchronised=counters.desynchronised,
            broken=tuple(sorted(counters.broken)),
            uncovered=tuple(counters.uncovered),
            steered_apart=steered_apart,
        )


def watched(opened: MachineSession, case: Case) -> Lost:
    """Count, from now on, what a session loses."""
    assert opened.slots is not None
    return Lost(opened.slots, case, opened.machine.poison)


def _listed(names: Sequence[str]) -> str:
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else "".join(names)


class _Through(torch.autograd.Function):
    """The subject as a function of float64 tensors: they are the shadows of low-precision ones."""

    @staticmethod
    def forward(ctx: Any, function: LiftedFunction, *wide: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            ctx.low, ctx.output = function.forward(wide)
        ctx.function = function
        return function.wide(ctx.output)

    @staticmethod
    def backward(ctx: Any, *gradients: object) -> Any:
        return None, *ctx.function.backward(ctx.low, ctx.output, gradients[0])


@dataclass(kw_only=True)
class LiftedFunction:
    """A subject as a differentiable float64 function of some of a case's tensors.

    Every call rounds the float64 values to the case's dtype, makes them its shadows and runs the
    subject's own wrapper, whose kernels are compiled for the low precision; what comes back are shadows.
    """

    subject: Subject
    case: Case
    backend: Backend
    opened: MachineSession
    names: tuple[str, ...]

    def __call__(self, *wide: torch.Tensor) -> torch.Tensor:
        """Return the lifted output."""
        through: Any = _Through.apply
        result: torch.Tensor = through(self, *wide)
        return result

    def forward(self, wide: tuple[torch.Tensor, ...]) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return the low-precision leaves and the output, connected by the subject's own graph."""
        call = lay_out(self.subject, self.case, device=self.backend.device(), gradients=True)
        for name, placed in call.placed.items():
            if name not in self.names:  # leaves take the place of these
                self._set_shadows(placed.tensor, self.case.given[name].double())
        leaves = []
        for name, values in zip(self.names, wide, strict=True):
            dtype = self.case.given[name].dtype
            leaf = values.detach().to(self.backend.device(), dtype).requires_grad_(True)
            self._set_shadows(leaf, values)
            leaves.append(leaf)
        arguments = {**call.arguments, **dict(zip(self.names, leaves, strict=True))}
        returned = passed_on(self.subject.function, **arguments)
        output = returned[0] if isinstance(returned, tuple | list) else returned
        if not isinstance(output, torch.Tensor) or not output.requires_grad:
            raise UnusableError("no backward pass is connected to the output (or it is no tensor)")
        return leaves, output

    def backward(
        self, leaves: list[torch.Tensor], output: torch.Tensor, gradient: torch.Tensor
    ) -> list[torch.Tensor | None]:
        """Return the lifted gradients for a lifted grad_output."""
        low = gradient.detach().to(output.device, output.dtype).contiguous()
        self._set_shadows(low, gradient)
        found = passed_on(torch.autograd.grad, output, leaves, low, retain_graph=True, allow_unused=True)
        return [None if g is None else self.wide(g) for g in found]

    def wide(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the shadows of a tensor, float64."""
        assert self.opened.slots is not None
        return torch.from_numpy(np.array(self.opened.slots.get(tensor.detach())))

    def shadows_for(self, values: torch.Tensor) -> Shadows:
        """Return the shadows of float64 values."""
        return values.detach().numpy()

    def _set_shadows(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        assert self.opened.slots is not None
        if tensor.is_floating_point():  # a boolean mask has no shadows
            self.opened.slots.set(tensor.detach(), self.shadows_for(values))


def attempt(backend: Backend, experiment: Callable[[], Observation]) -> Observation:
    """Run an experiment of the child; what the subject raises becomes an observation."""
    backend.begin()
    try:
        seen = experiment()
    except UnusableError as error:
        return Observation(status="unusable", message=str(error))
    except Exception as error:
        return failure(error, backend)
    return seen
