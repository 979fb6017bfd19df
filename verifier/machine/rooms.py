"""Room for a wave of a translated kernel: registers and bound code, kept and used again by later launches.

Preparing a wave costs as much as executing a small one, so what a launch has finished with waits for the
next launch of the same shape. Registers that may be read before they are written are poisoned again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from verifier.machine import uniformity
from verifier.machine.memory import LOCAL_TAG, SHARED_TAG
from verifier.machine.sanitizers.uninitialised import Flags
from verifier.machine.shelf import Shelf
from verifier.machine.wave import Wave

if TYPE_CHECKING:
    from collections.abc import Callable

    from verifier.machine.emitter import Emitted
    from verifier.machine.launch import Launch
    from verifier.machine.numerics import Array
    from verifier.machine.translation import Compiled


@dataclass(kw_only=True, eq=False)
class Room:
    """A wave with the code bound to it: block functions for all lanes and for some, and what to renew.

    `members`: for blocks that begin with a collective, its member mask where that is in a register.
    """

    wave: Wave
    full: list[Callable[[], Any]]
    part: list[Callable[[Any], Any]]
    renew: Callable[[], None]
    members: dict[int, Callable[[Any], Any]]
    names: dict[str, Any]


_SHELF = Shelf()


def enter(launch: Launch, ids: Array) -> tuple[Any, Room]:
    """Give a room for these blocks of a launch, with the key under which to give it back."""
    machine, frame = launch.machine, launch.frame
    key = (launch.compiled, len(ids), launch.block, frame.shared, frame.local, machine.poison)
    room: Room | None = None
    if "uninitialised" not in machine.sanitize:
        room = shelf_of(launch).take(key)
    if room is None:
        return key, build(launch, ids)
    wave = room.wave
    wave.memory, wave.grid, wave.parameters = launch.memory, launch.grid, launch.parameters
    wave.model, wave.monitors, wave.symbols = machine.approximation, launch.monitors, frame.symbols
    wave.multiprocessors = machine.multiprocessors
    room.names["model"] = wave.model
    wave.restart(ids)
    room.renew()
    return key, room


def leave(launch: Launch, key: Any, room: Room) -> None:
    """Give a room back after a launch that ended well."""
    if room.wave.flags is None:
        room.wave.forget()
        shelf_of(launch).give_back(key, room)


def shelf_of(launch: Launch) -> Shelf:
    """Slots keep their own rooms, which end with them."""
    return _SHELF if launch.slots is None else launch.slots.shelf


def build(launch: Launch, ids: Array) -> Room:
    """Allocate a wave for these blocks and bind the translated code to it."""
    wave = Wave(
        memory=launch.memory,
        block_ids=ids,
        grid=launch.grid,
        block=launch.block,
        shared_size=launch.frame.shared,
        local_size=launch.frame.local,
        parameters=launch.parameters,
        model=launch.machine.approximation,
        poison=launch.machine.poison,
        monitors=launch.monitors,
        multiprocessors=launch.machine.multiprocessors,
        symbols=launch.frame.symbols,
        slots=launch.slots,
    )
    if "uninitialised" in launch.machine.sanitize:
        wave.flags = Flags(wave)
    names = runtime_names(wave) | launch.compiled.constants
    compiled = launch.compiled
    names |= arrays(wave, compiled.emitted)
    for name, expression in compiled.emitted.shadows.items():
        names[name] = eval(compiled.allocation(expression), names)  # noqa: S307 - our own translation
        names[f"{name}_flat"] = names[name].reshape(-1)
    exec(compiled.prologue, names)  # noqa: S102 - our own translation of the kernel
    members = {number: names[f"members_{number}"] for number in compiled.emitted.members}
    room = Room(wave=wave, full=[], part=[], renew=names["renew"], members=members, names=names)
    for number in range(len(compiled.emitted.full)):
        reached_later(room, compiled, number, part=False)
    for number in range(len(compiled.emitted.part)):
        reached_later(room, compiled, number, part=True)
    return room


def reached_later(room: Room, compiled: Compiled, number: int, *, part: bool) -> None:
    """Put in a block's place what compiles it, puts it there and calls it."""
    blocks: list[Callable[..., Any]] = room.part if part else room.full

    def first(*group: Any) -> Any:
        exec(compiled.block(number, part=part), room.names)  # noqa: S102 - our own translation of the kernel
        blocks[number] = room.names["block"]
        return blocks[number](*group)

    blocks.append(first)


def arrays(wave: Wave, emitted: Emitted) -> dict[str, Array]:
    """Give all registers for a wave, by name, as each type in which the code sees them, also flat."""
    found = {}
    for base, register in emitted.registers.items():
        found[base] = allocate(wave, register.width, register.shape, register.exposed)
        for name, dtype in register.views.items():
            found[name] = view = found[base] if dtype == "?" else found[base].view(dtype)
            found[f"{name}_flat"] = view.reshape(-1)
    return found


def allocate(wave: Wave, width: int, shape: int, exposed: bool) -> Array:
    """Give a register for a wave, filled with the poison; `exposed` ones are filled again for every wave."""
    rows = wave.blocks if shape & uniformity.PER_BLOCK else 1
    columns = wave.threads if shape & uniformity.PER_THREAD else 1
    filler = 0 if width == 1 or wave.poison is None else wave.poison
    register = np.empty((rows, columns), dtype=bool if width == 1 else f"u{width // 8}")
    register.view(np.uint8).fill(filler)
    if exposed:
        wave.exposed.append((register.view(np.uint8), filler))
    return register


def runtime_names(wave: Wave) -> dict[str, Any]:
    """Names that every emitted kernel uses."""
    names = {
        name: getattr(np, name)
        for name in (
            "add",
            "subtract",
            "multiply",
            "divide",
            "negative",
            "absolute",
            "minimum",
            "maximum",
            "sqrt",
            "bitwise_and",
            "bitwise_or",
            "bitwise_xor",
            "invert",
            "equal",
            "not_equal",
            "less",
            "less_equal",
            "greater",
            "greater_equal",
            "positive",
            "isfinite",
            "isinf",
            "isnan",
            "reciprocal",
            "where",
            "copyto",
            "rint",
            "trunc",
            "floor",
            "ceil",
        )
    }
    if wave.flags is not None:
        names["flags"] = wave.flags
    if wave.slots is not None:
        names |= {"slots": wave.slots, "slots_zero": np.zeros((), dtype=wave.slots.arithmetic.dtype)}
    return names | {
        "wave": wave,
        "model": wave.model,
        "np": np,
        "shared_tag": SHARED_TAG,
        "local_tag": LOCAL_TAG,
    }
