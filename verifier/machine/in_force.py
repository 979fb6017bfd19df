"""The session in force: which machine is played now, and what has happened since."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from verifier.machine.execute.findings import LaunchError
from verifier.machine.execute.reached_code import ReachedCode
from verifier.machine.execute.tuning import Tuning

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from verifier.machine.execute.chosen_blocks import FollowedRows
    from verifier.machine.model import Machine
    from verifier.machine.shadow.slots import Slots

_ACTIVE: list[MachineSession] = []
_COUNTER = {"launches": 0}


class CurrentStream(Protocol):
    """What the session knows of the stream that is current."""

    device_index: int


def _first_device() -> torch.device:
    import torch

    return torch.device("cuda", 0)


@dataclass(kw_only=True)
class MachineSession:
    """What happens while a machine is in force.

    `launches`: kernel names with their grids, in order. `codes`: PTX and name of each kernel launched.
    `unfilled`: file and line of each Triton load in them that leaves lanes undefined.
    `followed`: how the grids of launches followed the rows, where rows were chosen.
    `redirected`: factory calls that named a CUDA device, with its number, and were answered on the CPU.
    `home`: the device on which tensors lie that nobody put elsewhere; `devices`: how many there are;
    `current_device`, `stream`: as `torch.cuda` chooses them. `strict`: what a device refuses is refused, that
    is tensors of the host in a launch, and operations between several devices. `failed`: what launches
    raised, but for refused ones. `tuning`: how autotuned kernels choose. `reached`: notes which code runs.
    `streamed`: whether another stream than the default one was ever current.
    `early`: those of `codes` that were launched so that they may begin before what came before has ended.
    `unwaited`: in words, by what the host shares memory with a device, or asks how far it is, and does not
    wait for it.
    `asked_processors`: how often a wrapper has read the number of multiprocessors.
    """

    machine: Machine
    tuning: Tuning = field(default_factory=Tuning)
    launches: list[tuple[str, tuple[int, int, int]]] = field(default_factory=list)
    codes: set[tuple[str, str]] = field(default_factory=set)
    unfilled: dict[str, None] = field(default_factory=dict)
    followed: list[FollowedRows] = field(default_factory=list)
    redirected: list[tuple[str, str]] = field(default_factory=list)
    failed: list[Exception] = field(default_factory=list)
    slots: Slots | None = None
    strict: bool = False
    devices: int = 1
    current_device: int = 0
    home: torch.device = field(default_factory=_first_device)
    asked_processors: int = 0
    stream: CurrentStream | None = None
    streamed: bool = False
    early: set[tuple[str, str]] = field(default_factory=set)
    unwaited: set[str] = field(default_factory=set)
    reached: ReachedCode = field(default_factory=ReachedCode)

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


def current() -> MachineSession | None:
    """MachineSession in force, or None."""
    return _ACTIVE[-1] if _ACTIVE else None


@contextmanager
def put_in_force(opened: MachineSession) -> Iterator[None]:
    """Let a session be the one in force."""
    _ACTIVE.append(opened)
    try:
        yield
    finally:
        _ACTIVE.remove(opened)
