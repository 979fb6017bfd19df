"""The machine that is in force: a session plays a device for everything that runs inside it."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from verifier.machine.approximation import Adversarial, Approximation, Correct
from verifier.machine.findings import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from verifier.machine.launch import Machine
    from verifier.machine.slots import Arithmetic, Slots

_ACTIVE: list[Session] = []
_COUNTER = {"launches": 0}


@dataclass(kw_only=True)
class Session:
    """What happens while a machine is in force.

    `launches`: kernel names with their grids, in order. `codes`: PTX and name of each kernel launched.
    `redirected`: factory calls that named a CUDA device, with its number, and were answered on the CPU.
    `home`: the device on which tensors lie that nobody put elsewhere; `devices`: how many there are;
    `current_device`, `stream`: as `torch.cuda` chooses them. `strict`: what a device refuses is refused, that
    is tensors of the host in a launch, and operations between several devices. `failed`: what launches
    raised, but for refused ones. `autotune_seed`: None takes the first configuration of an autotuned kernel
    that fits the device, an integer one chosen by it.
    """

    machine: Machine
    autotune_seed: int | None = None
    launches: list[tuple[str, tuple[int, int, int]]] = field(default_factory=list)
    codes: set[tuple[str, str]] = field(default_factory=set)
    redirected: list[tuple[str, str]] = field(default_factory=list)
    failed: list[Exception] = field(default_factory=list)
    configurations: dict[int, dict[Any, Any]] = field(default_factory=dict)
    slots: Slots | None = None
    strict: bool = False
    devices: int = 1
    current_device: int = 0
    home: Any = None
    stream: Any = None

    def __post_init__(self) -> None:
        """Let tensors lie on the first device."""
        import torch

        self.home = self.home or torch.device("cuda", 0)

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """Keep what a launch raises; a refused one is forgotten, since a wrapper may rightly try another."""
        try:
            yield
        except LaunchError:
            raise
        except Exception as error:
            if error not in self.failed:
                self.failed.append(error)
            raise


def launched() -> int:
    """Return how many kernels have run in this process, in whichever session; a grid of nothing is none."""
    return _COUNTER["launches"]


def count_run(grid: Sequence[int]) -> None:
    """Count a kernel that was not refused, and ran."""
    _COUNTER["launches"] += 0 not in grid


def note_launch(kernel: str, grid: tuple[int, int, int]) -> None:
    """Keep a launch in the session in force."""
    if (opened := current()) is not None:
        opened.launches.append((kernel, grid))


def current() -> Session | None:
    """Session in force, or None."""
    return _ACTIVE[-1] if _ACTIVE else None


@contextmanager
def session(
    *,
    machine: Machine | None = None,
    approximation: Approximation | str | None = None,
    autotune_seed: int | None = None,
    arithmetic: Arithmetic | str | None = None,
    strict: bool | None = None,
    **settings: Any,
) -> Iterator[Session]:
    """Run every Triton kernel and every `device="cuda"` inside on the CPU, as the machine's device.

    Inside, tensors say that they lie on `cuda:0` unless they were made or moved elsewhere by name.

    machine: a ready `Machine`, or its fields as keywords (architecture, multiprocessors, contraction,
    schedule_seed, poison, bounds, sanitize, ...). approximation: a model, or "correct", "adversarial"
    or "device" (the measured answers of compute capability 9.0).
    arithmetic: what rides beside the IEEE run, by name ("lifted", "field", "field_exponential", "taint",
    "ball") or as an object; its slots are at `Session.slots`.
    strict: refuse what a device refuses of tensors of the host; None for what the session about it does.

    Raises TypeError for a keyword that `Machine` lacks.
    """
    from verifier.machine.device import redirected
    from verifier.machine.launch import Machine as MachineRecord

    if approximation is not None:
        settings["approximation"] = _model(approximation)
    if machine is None:
        known = {f.name for f in fields(MachineRecord)}
        unknown = set(settings) - known
        if unknown:
            raise TypeError(
                f"a machine has no {', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}"
            )
        for name in ("sanitize", "read_only", "outputs"):
            if name in settings:
                settings[name] = frozenset(settings[name])
        machine = MachineRecord(**settings)
    elif settings:
        raise TypeError("either a machine or its fields, not both")
    with ExitStack() as stack:
        opened = Session(
            machine=machine, autotune_seed=autotune_seed, slots=_slots(arithmetic), **_inherited(strict)
        )
        stack.enter_context(_pushed(opened))
        stack.enter_context(redirected())
        if _has_triton():
            from verifier.machine.driver import installed

            stack.enter_context(installed())
        if opened.slots is not None:
            from verifier.machine.hosting import HostSlots

            stack.enter_context(HostSlots(opened.slots))
        yield opened


def _inherited(strict: bool | None) -> dict[str, Any]:
    """Devices are those of the session about a session."""
    outer = current()
    known: dict[str, Any] = {"strict": bool(strict)}
    if outer is not None:
        names = ("strict", "devices", "current_device", "home", "stream")
        known = {name: getattr(outer, name) for name in names}
        known |= {} if strict is None else {"strict": strict}
    return known


@contextmanager
def _pushed(opened: Session) -> Iterator[None]:
    _ACTIVE.append(opened)
    try:
        yield
    finally:
        _ACTIVE.remove(opened)


def _model(name: Approximation | str) -> Approximation:
    if not isinstance(name, str):
        return name
    if name == "correct":
        return Correct()
    if name.startswith("adversarial"):
        return Adversarial(seed=int(name.partition(":")[2] or 0))
    if name == "device":
        from verifier.machine.unit import device

        return device()
    raise ValueError(
        f"approximation is 'correct', 'device', 'adversarial', 'adversarial:<seed>' or a model, not {name!r}"
    )


def _slots(arithmetic: Arithmetic | str | None) -> Slots | None:
    if arithmetic is None:
        return None
    from verifier.machine import arithmetics
    from verifier.machine.slots import Slots as SlotRecord
    from verifier.machine.tags import TagSlots

    made = arithmetics.make(arithmetic) if isinstance(arithmetic, str) else arithmetic
    return TagSlots(made) if getattr(made, "shadow", "slots") == "tags" else SlotRecord(made)


def _has_triton() -> bool:
    from importlib.util import find_spec

    return find_spec("triton") is not None
