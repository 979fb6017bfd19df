"""The opener of sessions, each of which plays a device for everything that runs inside it."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from verifier.machine.arithmetic.approximation import Adversarial, Approximation, Correct
from verifier.machine.device.torch_redirect import redirected
from verifier.machine.execute.tuning import Tuning
from verifier.machine.in_force import MachineSession, current, put_in_force
from verifier.machine.model import Machine
from verifier.machine.shadow import arithmetics
from verifier.machine.shadow.emitter_kind import EmitterKind
from verifier.machine.shadow.graph_host import HostGraph
from verifier.machine.shadow.graph_slots import GraphSlots
from verifier.machine.shadow.host_operations import HostSlots
from verifier.machine.shadow.host_reads import reads_noted
from verifier.machine.shadow.slots import Slots
from verifier.machine.shadow.taint_slots import TaintSlots

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verifier.machine.shadow.slots import ShadowArithmetic


@contextmanager
def session(
    *,
    machine: Machine | None = None,
    approximation: Approximation | str | None = None,
    autotune_seed: int | None = None,
    arithmetic: ShadowArithmetic | str | None = None,
    strict: bool | None = None,
    **settings: Any,
) -> Iterator[MachineSession]:
    """Run every Triton kernel and every `device="cuda"` inside on the CPU, as the machine's device.

    Inside, tensors say that they lie on `cuda:0` unless they were made or moved elsewhere by name.

    machine: a ready `Machine`, or its fields as keywords (architecture, multiprocessors, contraction,
    schedule_seed, poison, bounds, sanitize, ...). approximation: a model, or "correct", "adversarial"
    or "device" (the measured answers of compute capability 9.0).
    autotune_seed: None takes the first configuration of an autotuned kernel that fits the device, an integer
    one chosen by it.
    arithmetic: of the shadows, by name ("lifted", "field", "field_exponential", "taint",
    "ball") or as an object; its shadows are at `MachineSession.slots`.
    strict: refuse what a device refuses of tensors of the host; None for what the session about it does.

    Raises TypeError for a keyword that `Machine` lacks.
    """
    if approximation is not None:
        settings["approximation"] = _model(approximation)
    if machine is None:
        known = {f.name for f in fields(Machine)}
        unknown = set(settings) - known
        if unknown:
            raise TypeError(
                f"a machine has no {', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}"
            )
        for name in ("sanitize", "read_only", "outputs"):
            if name in settings:
                settings[name] = frozenset(settings[name])
        machine = Machine(**settings)
    elif settings:
        raise TypeError("either a machine or its fields, not both")
    with ExitStack() as stack:
        opened = MachineSession(machine=machine, tuning=Tuning(seed=autotune_seed), slots=_slots(arithmetic))
        _inherit(opened, strict)
        stack.enter_context(put_in_force(opened))
        stack.enter_context(redirected())
        if _has_triton():
            from verifier.machine.device.triton_driver import installed

            stack.enter_context(installed())
        if opened.slots is not None:
            slots = opened.slots
            if isinstance(slots, GraphSlots):
                stack.enter_context(reads_noted(slots.asked, slots.fixed))
                stack.enter_context(HostGraph(slots))
            else:
                stack.enter_context(HostSlots(slots))
        yield opened


def _inherit(opened: MachineSession, strict: bool | None) -> None:
    """Give a session the devices, and what notes the code that runs, of the session about it."""
    outer = current()
    if outer is not None:
        opened.devices, opened.current_device, opened.home = outer.devices, outer.current_device, outer.home
        opened.stream, opened.reached, opened.strict = outer.stream, outer.reached, outer.strict
    if strict is not None:
        opened.strict = strict


def _model(name: Approximation | str) -> Approximation:
    if not isinstance(name, str):
        return name
    if name == "correct":
        return Correct()
    if name.startswith("adversarial"):
        return Adversarial(seed=int(name.partition(":")[2] or 0))
    if name == "device":
        from verifier.machine.arithmetic.special_function_unit import device

        return device()
    raise ValueError(
        f"approximation is 'correct', 'device', 'adversarial', 'adversarial:<seed>' or a model, not {name!r}"
    )


def _slots(arithmetic: ShadowArithmetic | str | None) -> Slots | None:
    if arithmetic is None:
        return None
    made = arithmetics.make(arithmetic) if isinstance(arithmetic, str) else arithmetic
    if made.emitter is EmitterKind.GRAPH:
        return GraphSlots(made)
    return TaintSlots(made) if made.emitter is EmitterKind.TAINT else Slots(made)


def _has_triton() -> bool:
    from importlib.util import find_spec

    return find_spec("triton") is not None
