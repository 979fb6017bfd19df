"""Runs a subject with another arithmetic beside its floats, through its unmodified wrapper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from verifier.case import Case
from verifier.culprit import passed_on
from verifier.machine.numerics import decode_bf16
from verifier.runner.execute import UnusableError, execute, failure, lay_out
from verifier.runner.observation import Observation
from verifier.subjects import Subject

if TYPE_CHECKING:
    from verifier.arithmetic import Array
    from verifier.machine.sessions import Session
    from verifier.machine.slots import Arithmetic

SlotsOf = Mapping[str, Any]
"""For each tensor of a case its slots, an array of the tensor's shape."""


@contextmanager
def riding(arithmetic: Arithmetic, *, lanes: int | None = None) -> Iterator[Session]:
    """Let an arithmetic ride on the machine that is in force; what is inside runs on the same device.

    lanes: of a wave, where slots are so large that fewer of them are faster (None: the machine's own).
    """
    from verifier.machine import current, session

    playing = current()
    assert playing is not None, "an arithmetic rides on the machine, in the machine's process"
    machine = playing.machine if lanes is None else replace(playing.machine, lanes_per_wave=lanes)
    with session(machine=machine, arithmetic=arithmetic) as opened:
        yield opened


def ride(
    subject: Subject,
    case: Case,
    *,
    place: Any,
    opened: Session,
    given: SlotsOf,
    gradients: bool,
    around: Any = None,
) -> tuple[Observation, dict[str, Any]]:
    """Execute once under the session's arithmetic; also return the slots of what came out, by name.

    given: the slots that tensors of the case start with; the others have none. around: the slot of the
    memory between the elements of those tensors.
    """
    names, slots = iter(case.given), opened.slots
    assert slots is not None

    def put(layout: Any, values: torch.Tensor, **settings: Any) -> Any:
        placed, name = layout.place(values, **settings), next(names)
        if name in given:
            if around is not None:
                whole = _storage(placed.tensor)
                slots.set(whole, np.full(tuple(whole.shape), around))
            slots.set(placed.tensor, given[name])
        return placed

    seen = execute(subject, case, place=place, gradients=gradients, placer=put)
    return seen, slots_of(opened, seen.outputs) if seen.status == "ok" else {}


def ride_backward(
    subject: Subject, case: Case, *, place: Any, opened: Session, given: SlotsOf
) -> tuple[Observation, dict[str, Any]]:
    """Run the forward pass without slots, then the backward pass with those given.

    What the forward pass computed and saved, the statistics, has no slots; an input that it saved has.
    """
    outputs: dict[str, torch.Tensor | None] = {}

    def both() -> Observation:
        assert opened.slots is not None
        call = lay_out(subject, case, device=place.device(), gradients=True)
        returned = passed_on(subject.function, **call.arguments)
        output = returned[0] if isinstance(returned, tuple | list) else returned
        for name, values in given.items():
            opened.slots.set(call.placed[name].tensor.detach(), values)
        wanted = {n: t for n, t in call.arguments.items() if isinstance(t, torch.Tensor) and t.requires_grad}
        gradient = call.placed["grad_output"].tensor
        found = passed_on(torch.autograd.grad, output, list(wanted.values()), gradient, allow_unused=True)
        outputs.update({f"grad_{name}": g for name, g in zip(wanted, found, strict=True)})
        return Observation(status="ok")

    seen = attempt(place, both)
    return seen, slots_of(opened, outputs) if seen.status == "ok" else {}


def slots_of(opened: Session, outputs: Mapping[str, torch.Tensor | None]) -> dict[str, Any]:
    """Return the slots of results by name; what is missing or no float has none."""
    assert opened.slots is not None
    floats = {n: t.detach() for n, t in outputs.items() if t is not None and t.is_floating_point()}
    return {name: opened.slots.get(tensor) for name, tensor in floats.items()}


def _storage(tensor: torch.Tensor) -> torch.Tensor:
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return torch.as_strided(tensor.detach(), (count,), (1,), 0)


class Lost:
    """Counts values that were read without their slot although they are no plain constants.

    A value without a slot is lifted from its float: right for what was never computed (a mask's 0, eps,
    a power of two that an exponential is scaled by, a register that a guarded load left as it was), wrong for
    a result whose slot was lost on the way.
    """

    def __init__(self, slots: Any, case: Case, poison: int | None = None) -> None:
        """Watch the reads of one session; poison: byte that fills its registers and shared memory."""
        self.slots, self.read = slots, slots.read
        scalars = [float(v) for v in case.scalars.values() if isinstance(v, float)]
        plain = [float(np.float32(s)) for s in scalars] + scalars
        if poison is not None:
            unwritten = np.full(8, poison, dtype=np.uint8)
            plain += [float(unwritten.view(kind)[0]) for kind in ("f2", "f4", "f8")]
            plain.append(float(decode_bf16(unwritten.view("u2"))[0]))
        self.plain = np.unique(np.array(plain, dtype=np.float64))
        self.values = 0
        slots.read = self.watch

    def watch(self, values: Array, kind: str, slots: Array, tags: Array, *where: Any) -> Array:
        """Read as the session does, and count."""
        before = self.slots.counters.lifted
        found: Array = self.read(values, kind, slots, tags, *where)
        if self.slots.counters.lifted != before:
            self.values += self.lost_of(values, kind, tags)
        return found

    def lost_of(self, values: Array, kind: str, tags: Array) -> int:
        """Count the values that have no slot and should have one."""
        wide = (decode_bf16(values) if kind == "bf16" else values).astype(np.float64)
        wide, without = np.broadcast_arrays(wide, tags == 0)
        wide = wide[without]
        mantissa, _ = np.frexp(wide[np.isfinite(wide)])
        computed = (mantissa != 0) & (np.abs(mantissa) != 0.5)
        return int(np.sum(computed & ~np.isin(wide[np.isfinite(wide)], self.plain)))

    def facts(self) -> dict[str, Any]:
        """Say what was lost, for a report."""
        counters = self.slots.counters
        return {
            "lost_slots": self.values,
            "desynchronised_slots": counters.desynchronised,
            "lost_at": dict(counters.lost),
            "broken_chains": sorted(counters.broken),
            "uncovered_operations": dict(counters.uncovered),
        }


def watched(opened: Session, case: Case) -> Lost:
    """Count, from now on, what a session loses."""
    return Lost(opened.slots, case, opened.machine.poison)


def rests_on_lost_slots(facts: Mapping[str, Any]) -> str:
    """Say which slots were lost, or nothing if none was."""
    said = {
        "lost_slots": "{} value(s) without a slot",
        "desynchronised_slots": "{} slot(s) of other bits",
        "broken_chains": "bits of floats changed by {}",
        "uncovered_operations": "operations between launches that are not followed: {}",
        "steered_apart": "{} choice(s) that the lifted values would have made otherwise",
    }
    return "; ".join(words.format(_listed(facts[name])) for name, words in said.items() if facts.get(name))


def _listed(what: Any) -> str:
    if isinstance(what, int):
        return str(what)
    first, *others = map(str, what)
    return f"{first} and {len(others)} more" if others else first


class _Through(torch.autograd.Function):
    """The subject as a function of float64 tensors: they ride beside low-precision ones."""

    @staticmethod
    def forward(ctx: Any, function: Lifted, *wide: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            ctx.low, ctx.output = function.forward(wide)
        ctx.function = function
        return function.wide(ctx.output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, *ctx.function.backward(ctx.low, ctx.output, gradients[0])


@dataclass(kw_only=True)
class Lifted:
    """A subject as a differentiable float64 function of some of a case's tensors.

    Every call rounds the float64 values to the case's dtype, lets them ride in the slots and runs the
    subject's own wrapper, whose kernels are compiled for the low precision; what comes back are slots.
    """

    subject: Subject
    case: Case
    place: Any
    opened: Session
    names: tuple[str, ...]

    def __call__(self, *wide: torch.Tensor) -> torch.Tensor:
        """Return the lifted output."""
        through: Any = _Through.apply
        result: torch.Tensor = through(self, *wide)
        return result

    def forward(self, wide: tuple[torch.Tensor, ...]) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return the low-precision leaves and the output, connected by the subject's own graph."""
        call = lay_out(self.subject, self.case, device=self.place.device(), gradients=True)
        for name, placed in call.placed.items():
            self._ride(placed.tensor, self.case.given[name].double())
        leaves = []
        for name, values in zip(self.names, wide, strict=True):
            dtype = self.case.given[name].dtype
            leaf = values.detach().to(self.place.device(), dtype).requires_grad_(True)
            self._ride(leaf, values)
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
        self._ride(low, gradient)
        found = passed_on(torch.autograd.grad, output, leaves, low, retain_graph=True, allow_unused=True)
        return [None if g is None else self.wide(g) for g in found]

    def wide(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the slots of a tensor, float64."""
        assert self.opened.slots is not None
        return torch.from_numpy(np.array(self.opened.slots.get(tensor.detach())))

    def slots_for(self, values: torch.Tensor) -> Any:
        """Return the slots of float64 values."""
        return values.detach().numpy()

    def _ride(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        assert self.opened.slots is not None
        self.opened.slots.set(tensor.detach(), self.slots_for(values))


def attempt(place: Any, experiment: Any) -> Observation:
    """Run an experiment of the child; what the subject raises becomes an observation."""
    place.begin()
    try:
        seen: Observation = experiment()
    except UnusableError as error:
        return Observation(status="unusable", message=str(error))
    except Exception as error:
        return failure(error, place)
    return seen
