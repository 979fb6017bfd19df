"""What is known of a launch before its blocks run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.execute.memory import GlobalMemory
    from verifier.machine.execute.reached_code import ReachedCode
    from verifier.machine.execute.variable_layout import Frame
    from verifier.machine.execute.wave import Monitor
    from verifier.machine.model import Machine
    from verifier.machine.shadow.slots import Slots
    from verifier.machine.translate.compile_kernel import TranslatedKernel


@dataclass(frozen=True, kw_only=True, eq=False)
class LaunchRecord:
    """One launch: a translated kernel with its arguments, its grid, and the machine that plays it.

    `kernel`: its name. `grid`, `block`: extents along x, y and z. `memory`: where its tensors are mapped;
    `frame`: where its variables lie; `parameters`: the bytes of its arguments. `monitors`: the sanitizers
    that watch it. `slots`: of the session, None where it has no arithmetic. `reached`: notes what runs.
    `chosen`: numbers of the blocks that run; None for all of them. `cluster`: blocks of a cluster along each
    axis, None in a kernel that knows of none.
    """

    machine: Machine
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    compiled: TranslatedKernel
    frame: Frame
    memory: GlobalMemory
    parameters: bytes
    monitors: tuple[Monitor, ...]
    slots: Slots | None
    reached: ReachedCode
    chosen: Array | None = None
    cluster: tuple[int, int, int] | None = None
