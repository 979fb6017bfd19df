"""Launches: from a kernel, a grid and arguments to waves of blocks executed one after the other."""

# ruff: noqa: PLR0917 - a launch names its shape by position, as CUDA does

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from math import prod
from operator import index
from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.execute.arguments import pack
from verifier.machine.execute.block_order import Waves
from verifier.machine.execute.chosen_blocks import MOST_STEPS, followed, numbers_of
from verifier.machine.execute.clusters import MAX_CLUSTER
from verifier.machine.execute.findings import LaunchError, UnsupportedFeature
from verifier.machine.execute.launch_record import LaunchRecord
from verifier.machine.execute.memory import GlobalMemory
from verifier.machine.execute.reached_code import ReachedCode
from verifier.machine.execute.variable_layout import lay_out
from verifier.machine.in_force import count_run, current
from verifier.machine.model import MAX_GRID_YZ, MAX_THREADS, MAX_THREADS_Z, Machine
from verifier.machine.pace import PACE
from verifier.machine.ptx.basic_blocks import is_of_cluster
from verifier.machine.sanitizers.registry import make_monitors
from verifier.machine.shadow.emitter_kind import EmitterKind
from verifier.machine.translate.compile_kernel import compiled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from verifier.machine.in_force import MachineSession
    from verifier.machine.ptx.basic_blocks import Program
    from verifier.machine.shadow.slots import Slots

# Bytes a thread. Source: CUDA C++ programming guide, "Technical specifications per compute capability".
_MAX_LOCAL = 512 << 10
_APART = 1024
"""Bytes between shared variables where accesses behind them are looked for."""
CLUSTER_WORDS = frozenset({"mapa", "mbarrier", "shared::cluster"})
_UNREAD = ReachedCode()  # of launches outside of sessions


def launch_ptx(
    ptx: str,
    kernel: str,
    grid: Sequence[int],
    block: Sequence[int],
    shared_bytes: int,
    arguments: Sequence[object],
    *,
    machine: Machine | None = None,
    names: Sequence[str] | None = None,
    replicated: bool = False,
    session: MachineSession | None = None,
) -> None:
    """Execute a kernel of a PTX module on CPU tensors, in place.

    grid, block: up to three extents. shared_bytes: dynamic shared memory of a block.
    arguments: one per kernel parameter: a torch tensor (its data pointer is passed), a Python int, float or
    bool, a numpy scalar, a ctypes value, bytes (a structure passed by value), or None (a null pointer).
    Python numbers take the type and width of the PTX parameter. names: what reports call the arguments.
    replicated: where there are fewer elements than threads, the compiler lets threads be copies of each other
    (Triton does), which the race sanitizers allow for. session: the one in force if None.

    Raises MachineFinding for a defect that execution shows, UnsupportedInstruction for PTX outside the
    subset, UnsupportedFeature for what is not played otherwise, or takes too long (`pace`), LaunchError for a
    launch that no device would accept.
    """
    session = session or current()
    machine = machine or (session.machine if session else Machine())
    if session is not None:
        session.codes.add((ptx, kernel))
        if any(getattr(one, "is_pinned", bool)() for one in arguments):
            session.unwaited.add("launch that takes memory of the host")
    slots = session.slots if session is not None else None
    with session.remembering() if session is not None else nullcontext():
        PACE.keep()
        shape = (grid, block, shared_bytes)
        launch = prepare(
            ptx, kernel, shape, arguments, machine, slots=slots, names=names, replicated=replicated,
            reached=session.reached if session is not None else _UNREAD,
        )  # fmt: skip
        check(launch)
        if machine.chosen_rows is not None:
            number = len(session.followed) if session is not None else 0
            known = followed(kernel, launch.grid, machine.chosen_rows, number)
            launch = replace(launch, chosen=numbers_of(known, launch.grid, machine.chosen_rows))
            if known.axis is None and machine.chosen_rows.as_before is not None:
                launch = replace(launch, machine=replace(machine, step_limit=MOST_STEPS))
            if session is not None:
                session.followed.append(known)
        run(launch)
    count_run(grid)


def _extents(values: Sequence[int], what: str) -> tuple[int, int, int]:
    try:
        full = [index(v) for v in values] + [1] * (3 - len(values))
    except TypeError:
        raise LaunchError(f"{what} has to be whole numbers, not {tuple(values)}") from None
    if len(full) != 3 or any(v < 0 for v in full):
        raise LaunchError(f"{what} has to be up to three extents, not {tuple(values)}")
    return full[0], full[1], full[2]


def prepare(
    ptx: str,
    kernel: str,
    shape: tuple[Sequence[int], Sequence[int], int],
    arguments: Sequence[object],
    machine: Machine,
    *,
    slots: Slots | None,
    names: Sequence[str] | None,
    replicated: bool,
    reached: ReachedCode,
) -> LaunchRecord:
    """Translate the kernel and map its arguments; shape: grid, block and shared bytes of `launch_ptx`."""
    grid, block = _extents(shape[0], "grid"), _extents(shape[1], "block")
    memory = GlobalMemory()
    monitors = make_monitors(machine, replicated=replicated)
    full = any(getattr(monitor, "every_lane", False) for monitor in monitors)
    shadows = EmitterKind.FLAGS if "uninitialised" in machine.sanitize else None
    if slots is not None:
        if shadows:
            raise LaunchError("either an arithmetic or the tracking of uninitialised values, not both")
        shadows = slots.arithmetic.emitter
    code = compiled(ptx, kernel, machine.contraction, full or shadows is EmitterKind.FLAGS, shadows)
    for monitor in monitors:
        if begin := getattr(monitor, "begin", None):
            begin(code.sites)
    if slots is not None:
        slots.counters.broken.update(code.broken)
        slots.enter(kernel, code.sites)
        slots.replicated = replicated
    apart = _APART if "shared_bounds" in machine.sanitize else 0
    frame = lay_out(code.program, code.used, memory, shape[2], apart=apart)
    known = list(names) if names else [p.name for p in code.program.kernel.parameters]
    return LaunchRecord(
        machine=machine,
        kernel=kernel,
        grid=grid,
        block=block,
        compiled=code,
        frame=frame,
        memory=memory,
        parameters=pack(code.program.kernel, known, arguments, memory, machine.bounds),
        monitors=monitors,
        slots=slots,
        reached=reached,
        cluster=cluster_of(code.program),
    )


def check(launch: LaunchRecord) -> None:
    """Refuse what a device would refuse."""
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    check_cluster(launch)
    if launch.grid[0] >= 1 << 31 or max(launch.grid[1:]) > MAX_GRID_YZ:
        raise LaunchError(
            f"a grid of {launch.grid}; at most (2^31 - 1, {MAX_GRID_YZ}, {MAX_GRID_YZ}) is possible"
        )
    if not 1 <= threads <= MAX_THREADS:
        raise LaunchError(f"a block of {threads} threads; between 1 and {MAX_THREADS} are possible")
    if launch.block[2] > MAX_THREADS_Z:
        raise LaunchError(f"a block of {launch.block}; at most {MAX_THREADS_Z} threads are possible along z")
    if launch.frame.shared_used > launch.machine.max_shared():
        raise LaunchError(
            f"{launch.frame.shared_used} bytes of shared memory; the device has {launch.machine.max_shared()}"
        )
    if launch.frame.local > _MAX_LOCAL:
        raise LaunchError(
            f"{launch.frame.local} bytes of local memory a thread; at most {_MAX_LOCAL} are possible"
        )
    required = launch.compiled.program.kernel.directives.get("reqntid")
    if required and _extents(required, "reqntid") != launch.block:
        raise LaunchError(f"the kernel requires blocks of {required} threads, not {launch.block}")
    limit = launch.compiled.program.kernel.directives.get("maxntid")
    if limit and threads > prod(limit):
        raise LaunchError(f"the kernel allows at most {prod(limit)} threads a block, not {threads}")


def cluster_of(program: Program) -> tuple[int, int, int] | None:
    """Give the blocks of a cluster along each axis, None where no instruction knows of clusters."""
    directives = program.kernel.directives
    required = directives.get("reqnctapercluster")
    if required or "explicitcluster" in directives:
        return _extents(required or (), "reqnctapercluster")
    known = any(is_of_cluster(one) or CLUSTER_WORDS & set(one.parts) for one in program.instructions())
    return (1, 1, 1) if known else None


def check_cluster(launch: LaunchRecord) -> None:
    """Refuse clusters that no device would accept, or that are not played."""
    directives, size = launch.compiled.program.kernel.directives, launch.cluster or (1, 1, 1)
    if "explicitcluster" in directives and "reqnctapercluster" not in directives:
        raise UnsupportedFeature("thread-block clusters whose size the launch chooses", launch.kernel)
    if prod(size) > MAX_CLUSTER:
        raise LaunchError(f"clusters of {size} blocks; at most {MAX_CLUSTER} are possible everywhere")
    if any(extent % blocks for extent, blocks in zip(launch.grid, size, strict=True)):
        raise LaunchError(f"a grid of {launch.grid}, which clusters of {size} blocks do not divide")
    if prod(size) > 1 and launch.machine.chosen_rows is not None:
        raise UnsupportedFeature("a choice of rows among thread-block clusters", launch.kernel)


def run(launch: LaunchRecord) -> None:
    """Execute all blocks, wave after wave."""
    if 0 in launch.grid:
        return
    launch.reached.multiprocessors.add(launch.machine.multiprocessors)
    with np.errstate(all="ignore"), without_modes():
        Waves(launch).run()
    for monitor in launch.monitors:
        finish = getattr(monitor, "finish", None)
        if finish:
            finish(launch)


def without_modes() -> AbstractContextManager[object]:
    """Keep what follows host operations out of the launch, which converts numbers with torch."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()
