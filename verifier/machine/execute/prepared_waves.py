"""Waves of a translated kernel, prepared: registers and bound code, kept and used again by later launches.

Here the Python that the emitter wrote is executed (`run_translation`, `value_of_translation`).

Preparing a wave costs as much as executing a small one, so what a launch has finished with waits for the
next launch of the same shape. Registers that may be read before they are written are poisoned again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from verifier.machine.execute.extents import GridExtents
from verifier.machine.execute.reached_code import Watch
from verifier.machine.execute.reuse_cache import ReuseCache
from verifier.machine.execute.wave import Next, Wave
from verifier.machine.sanitizers.uninitialised import Flags
from verifier.machine.translate import uniformity

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from types import CodeType

    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.execute.lane_groups import Group
    from verifier.machine.execute.launch_record import LaunchRecord
    from verifier.machine.shadow.slots import Slots
    from verifier.machine.translate.emitter import Emitted


# fmt: off
_UFUNCS = (
    "add", "subtract", "multiply", "divide", "negative", "absolute", "minimum", "maximum", "sqrt",
    "bitwise_and", "bitwise_or", "bitwise_xor", "invert", "equal", "not_equal", "less", "less_equal",
    "greater", "greater_equal", "positive", "isfinite", "isinf", "isnan", "reciprocal", "where", "copyto",
    "rint", "trunc", "floor", "ceil", "left_shift", "right_shift",
)
# fmt: on
"""Functions of NumPy that emitted code calls by name."""


@dataclass(kw_only=True, eq=False)
class PreparedWave:
    """A wave with the code bound to it: block functions for all lanes and for some, and what to renew.

    `key`: of launches that may use it. `octets`: bytes that it holds. `names`: what the emitted code sees.
    `members`: for blocks that begin with a collective, its member mask where that is in a register.
    `shadows`: the shadows of its registers, and their tags; `slots`: those of whose session they are.
    """

    key: Hashable
    octets: int
    wave: Wave
    full: list[Callable[[], Next]]
    part: list[Callable[[Group], Next]]
    renew: Callable[[], None]
    members: dict[int, Callable[[Group], Array]]
    names: dict[str, Any]
    shadows: tuple[Array, ...] = ()
    slots: ref[Slots] | None = None

    def belong_to(self, slots: Slots | None) -> None:
        """Move the shadows of a session, beginning with none where they were another's."""
        self.wave.slots = self.names["slots"] = slots
        if slots is not None and (self.slots is None or self.slots() is not slots):
            for array in self.shadows:
                array.fill(0)
            self.names["renew_shadows"]()
            self.slots = ref(slots)


_FREE = ReuseCache()


def take(launch: LaunchRecord, ids: Array) -> PreparedWave:
    """Give a prepared wave for these blocks of a launch: one that has been used before, or a new one."""
    machine, frame = launch.machine, launch.frame
    key = (
        launch.compiled, launch.reached, len(ids), launch.block, frame.shared, frame.local, frame.gaps,
        machine.poison, launch.cluster,
    )  # fmt: skip
    prepared: object = None
    if "uninitialised" not in machine.sanitize:
        prepared = free_waves(launch).take(key)
    if not isinstance(prepared, PreparedWave):
        return prepare(launch, ids, key)
    wave = prepared.wave
    wave.memory, wave.parameters = launch.memory, launch.parameters
    wave.extents.grid, wave.extents.multiprocessors = launch.grid, machine.multiprocessors
    wave.model, wave.monitors, wave.symbols = machine.approximation, launch.monitors, frame.symbols
    prepared.names["model"] = wave.model
    wave.restart(ids)
    prepared.belong_to(launch.slots)
    prepared.renew()
    return prepared


def give_back(launch: LaunchRecord, prepared: PreparedWave) -> None:
    """Keep a wave for other launches after one that ended well."""
    if prepared.wave.flags is None:
        prepared.wave.forget()
        prepared.belong_to(None)
        free_waves(launch).give_back(prepared.key, prepared, prepared.octets)


def free_waves(launch: LaunchRecord) -> ReuseCache:
    """Give the waves that wait; slots have their own."""
    return _FREE if launch.slots is None else launch.slots.prepared_waves


def prepare(launch: LaunchRecord, ids: Array, key: Hashable) -> PreparedWave:
    """Allocate a wave for these blocks and bind the translated code to it."""
    extents = GridExtents(
        block_ids=ids,
        grid=launch.grid,
        block=launch.block,
        shared_size=launch.frame.shared,
        dynamic_shared=launch.frame.dynamic,
        shared_used=launch.frame.shared_used,
        multiprocessors=launch.machine.multiprocessors,
        cluster=launch.cluster,
        in_clusters="explicitcluster" in launch.compiled.program.kernel.directives,
    )
    wave = Wave(
        extents=extents,
        memory=launch.memory,
        local_size=launch.frame.local,
        parameters=launch.parameters,
        model=launch.machine.approximation,
        poison=launch.machine.poison,
        monitors=launch.monitors,
        symbols=launch.frame.symbols,
        gaps=launch.frame.gaps,
        slots=launch.slots,
    )
    if "uninitialised" in launch.machine.sanitize:
        wave.flags = Flags(extents, wave.poison)
    compiled = launch.compiled
    registers, octets = arrays(wave, compiled.emitted)
    names = runtime_names(wave) | compiled.constants | registers
    for name, expression in compiled.emitted.shadows.items():
        names[name] = value_of_translation(compiled.allocation(expression), names)
        names[f"{name}_flat"] = names[name].reshape(-1)
    run_translation(compiled.prologue, names)
    shadows = tuple(names[name] for name in compiled.emitted.shadows)
    held = [*shadows, wave.shared.region.octets, wave.local.region.octets, wave.local_windows]
    prepared = PreparedWave(
        key=key,
        octets=octets + sum(one.nbytes for one in held),
        wave=wave,
        full=[],
        part=[],
        renew=names["renew"],
        members={number: names[f"members_{number}"] for number in compiled.emitted.members},
        names=names,
        shadows=shadows,
        slots=None if launch.slots is None else ref(launch.slots),
    )
    watch = Watch(launch.reached, compiled, names)
    for number in range(len(compiled.emitted.full)):
        compile_when_reached(prepared, watch, number, part=False)
    for number in range(len(compiled.emitted.part)):
        compile_when_reached(prepared, watch, number, part=True)
    return prepared


def run_translation(code: CodeType, names: dict[str, object]) -> None:
    """Execute Python that the emitter wrote, with these names; what it defines is added to them."""
    exec(code, names)  # noqa: S102 - our own translation of the kernel


def value_of_translation(code: CodeType, names: dict[str, object]) -> Any:
    """Evaluate an expression that the emitter wrote."""
    return eval(code, names)  # noqa: S307 - our own translation of the kernel


def compile_when_reached(prepared: PreparedWave, watch: Watch, number: int, *, part: bool) -> None:
    """Put in a block's place what compiles it, notes that it is reached, puts it there and calls it."""
    blocks: list[Callable[..., Next]] = prepared.part if part else prepared.full
    watched, lanes = watch.part if part else watch.full, prepared.wave.blocks * prepared.wave.threads

    def first(*group: Group) -> Next:
        run_translation(watch.kernel.block(number, part=part), prepared.names)
        blocks[number] = watched(number, lanes, prepared.names["block"])
        return blocks[number](*group)

    blocks.append(first)


def arrays(wave: Wave, emitted: Emitted) -> tuple[dict[str, Array], int]:
    """Give all registers for a wave, by name, as each type the code sees them in, also flat; and their bytes.

    Alike ones lie side by side: a kernel has hundreds, and to make each by itself takes four times as long.
    They are filled with the poison; `exposed` ones are filled again for every wave.
    """
    found: dict[str, Array] = {}
    octets = 0
    for several in emitted.alike:
        rows = wave.blocks if several.shape & uniformity.PER_BLOCK else 1
        columns = wave.threads if several.shape & uniformity.PER_THREAD else 1
        width, count = several.width, len(several.names)
        filler = 0 if width == 1 or wave.poison is None else wave.poison
        flat = np.empty((count, rows * columns), dtype=bool if width == 1 else f"u{width // 8}")
        flat.view(np.uint8).fill(filler)
        if several.exposed:
            wave.extents.exposed.append((flat.view(np.uint8), filler))
        octets += flat.nbytes
        whole = flat.reshape(-1, rows, columns)
        found.update(zip(several.names, whole, strict=True))
        for dtype, (places, names, flat_names) in several.views.items():
            typed, typed_flat = whole, flat
            if dtype != "?":
                typed_flat = flat.view(dtype)
                typed = typed_flat.reshape(count, rows, -1)
            if places is None:
                found.update(zip(names, typed, strict=True))
                found.update(zip(flat_names, typed_flat, strict=True))
            else:
                for name, flat_name, place in zip(names, flat_names, places, strict=True):
                    found[name], found[flat_name] = typed[place], typed_flat[place]
    return found, octets


def runtime_names(wave: Wave) -> dict[str, Any]:
    """Names that every emitted kernel uses."""
    names = {name: getattr(np, name) for name in _UFUNCS}
    if wave.flags is not None:
        names["flags"] = wave.flags
    if wave.slots is not None:
        names |= {"slots": wave.slots, "no_shadow": np.zeros((), dtype=wave.slots.arithmetic.dtype)}
    return names | {
        "wave": wave,
        "model": wave.model,
        "np": np,
    }
