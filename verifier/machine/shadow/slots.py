"""Where the shadows of floats lie, with their tags, and reads that notice when a shadow is stale.

The tag of a shadow is the bit pattern and width of the float with which it was computed. The shadow is used
only where the bits still are those; otherwise the value is lifted from the float, and the event is counted.
"""

# ruff: noqa: PLR0917 - these are called by position, many times a launch

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from verifier.machine.arithmetic import numerics
from verifier.machine.execute.reuse_cache import ReuseCache
from verifier.machine.ptx import logarithms
from verifier.machine.shadow.emitter_kind import EmitterKind
from verifier.machine.shadow.shadow_memory import Store, Stores
from verifier.machine.translate.uniformity import PER_BLOCK, PER_THREAD

if TYPE_CHECKING:
    import torch

    from verifier.machine.arithmetic.numerics import Array, ArrayOrNumber
    from verifier.machine.execute.atomics import Atomic, Observer
    from verifier.machine.execute.extents import GridExtents
    from verifier.machine.execute.memory import Located, Region
    from verifier.machine.ptx.syntax import Instruction

_WIDTH_SHIFT = np.uint64(56)
_MIX64 = np.uint64(0x5BD1E9955BD1E995)  # keeps tags of 64-bit patterns apart from those of narrower ones
NO_SHADOW = np.uint64(0)
# Tag of what an operation without a rule wrote: only one NaN of 64 bits has it, so that reads count it.
LOST = _MIX64 ^ np.uint64(0x7FF8_0000_0000_0001)
_NUMPY = {"f16": "f2", "bf16": "u2", "f32": "f4", "f64": "f8"}
_HALVES_OF = {"f16": 1, "bf16": 1, "f32": 2, "f64": 4}


MODIFIERS = frozenset({"rz", "rm", "rp", "ftz", "sat", "relu", "xorsign"})
"""Of an instruction, what changes how its result is rounded, flushed or clamped."""
PAIRS = {"f16x2": "f16", "bf16x2": "bf16"}
"""Kinds of atomics on two halves at once: each half is added alone (PTX, `red` and `atom`, packed types)."""


class ShadowArithmetic(Protocol):
    """What shadows mean: a value for a float that has none, and a rule for each operation.

    One that cares how results are rounded also has `modified` (`apply` with the modifiers after the name),
    called for instructions with `MODIFIERS`. One that tells literals from what lost its shadow has
    `lift_written(values, kind)` for floats in memory that somebody wrote without shadows.
    """

    @property
    def name(self) -> str:
        """Name by which `arithmetics.make` builds it."""
        ...

    @property
    def emitter(self) -> EmitterKind:
        """What writes the lines that move its shadows."""
        ...

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Numpy type of a shadow, structured if it has several parts."""
        ...

    def lift(self, values: Array, kind: str) -> Array:
        """Shadows of floats (float16, float32 or float64 arrays; integers for `kind` "integer")."""
        ...

    def apply(
        self, name: str, kind: str, result: Array, floats: tuple[Array, ...], shadows: tuple[Array, ...]
    ) -> Array:
        """Shadows of the results of an operation on floats with these shadows."""
        ...


class Listener(Protocol):
    """Hears of values that have no shadow."""

    def lifted(self, values: Array, kind: str) -> None:
        """Hear of floats that are lifted, before they are; bfloat16 comes as bit patterns."""

    def read_without_shadow(self, values: Array, kind: str, tags: Array) -> None:
        """Hear of a read of floats some of which have no shadow: their tag is 0."""


def tag(bits: Array, width: int) -> Array:
    """Tag of a bit pattern: never 0, which means that there is no shadow."""
    wide = bits.astype(np.uint64)
    if width == 64:
        return np.where(wide == _MIX64, np.uint64(1), wide ^ _MIX64)
    return wide | (np.uint64(width) << _WIDTH_SHIFT)


@dataclass(kw_only=True)
class Counters:
    """How often a value had to be lifted: without a shadow, or because its shadow belonged to other bits.

    `lifted`: values that had no shadow, data of the caller included. `desynchronised`: values whose bits had
    changed since their shadow was computed; `lost` counts them by the instruction that read them (kernel, PTX
    line, opcode, source line). `broken`: instructions that change the bits of floats which something may
    still read, found without running. `uncovered`: host operations that shadows do not follow, with counts.
    """

    lifted: int = 0
    desynchronised: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    uncovered: dict[str, int] = field(default_factory=dict)

    def describe(self) -> tuple[str, ...]:
        """Say, a sentence each, where chains of shadows have broken; nothing if none has."""
        return (
            *(f"{count} values had lost their shadows at {place}" for place, count in self.lost.items()),
            *(f"the host's {name} is not followed ({count} times)" for name, count in self.uncovered.items()),
        )


class Slots:
    """The slots of all that a session runs, and the operations on shadows that emitted code calls."""

    replicated = True
    """Whether threads of the kernel that runs may be copies of each other: see `launch_ptx`."""

    def __init__(self, arithmetic: ShadowArithmetic) -> None:
        """Start with no shadow anywhere."""
        self.arithmetic = arithmetic
        self.counters = Counters()
        self.stores = Stores(arithmetic.dtype)
        self.sites: list[Instruction] = []
        self.kernel = ""
        self.constants: dict[tuple[int, str], Array] = {}
        self.prepared_waves = ReuseCache()
        self.listener: Listener | None = None

    # Registers.

    def allocate(
        self, extents: GridExtents, shape: int, *, tags: bool = False, exposed: bool = False
    ) -> Array:
        """Make slots of registers of a shape class, for shadows or tags; each wave clears `exposed` ones."""
        rows = extents.blocks if shape & PER_BLOCK else 1
        columns = extents.threads if shape & PER_THREAD else 1
        array = np.zeros((rows, columns), dtype=np.uint64 if tags else self.arithmetic.dtype)
        if exposed:
            extents.exposed.append((array, 0))
        return array

    def lift(self, values: Array, kind: str) -> Array:
        """Lift floats given as arrays of their type; bfloat16 comes as bit patterns."""
        if self.listener is not None:
            self.listener.lifted(values, kind)
        if kind == "bf16":
            values = numerics.decode_bf16(values)
        return self.arithmetic.lift(np.asarray(values), kind)

    def lift_written(self, values: Array, kind: str) -> Array:
        """Lift floats of memory that was written, which left no shadow: no literals."""
        rule = getattr(self.arithmetic, "lift_written", None)
        if rule is None:
            return self.lift(values, kind)
        plain = numerics.decode_bf16(values) if kind == "bf16" else np.asarray(values)
        found: Array = rule(plain, kind)
        return found

    def constant(self, bits: int, kind: str) -> Array:
        """Lift a literal once."""
        found = self.constants.get((bits, kind))
        if found is None:
            dtype = _NUMPY[kind]
            pattern = np.array([[bits]], dtype=f"u{np.dtype(dtype).itemsize}").view(dtype)
            found = self.constants[bits, kind] = self.lift(pattern, kind)[0, 0]
        return found

    def enter(self, kernel: str, sites: list[Instruction]) -> None:
        """Take note of the kernel that runs next; `sites`: instructions by the numbers that reads give."""
        self.kernel, self.sites = kernel, sites

    def read(
        self, values: Array, kind: str, shadows: Array, tags: Array, site: int = -1, written: bool = False
    ) -> Array:
        """Shadows of floats, lifting those whose tag does not fit the bits; `site` numbers the instruction.

        written: they come from memory to which something was written.
        """
        width = values.dtype.itemsize * 8
        fits = tags == tag(values.view(f"u{width // 8}"), width)
        if fits.all():
            return shadows
        stale = ~fits
        without = int(np.count_nonzero(stale & (tags == NO_SHADOW)))
        self.counters.lifted += without
        lost = int(np.count_nonzero(stale & (tags != NO_SHADOW)))
        if lost:
            self._lose(lost, site)
        found = np.where(
            fits, shadows, self.lift_written(values, kind) if written else self.lift(values, kind)
        )
        if without and self.listener is not None:
            self.listener.read_without_shadow(values, kind, tags)
        return found

    def place(self, site: int) -> str:
        """Describe an instruction of the kernel that runs; -1 stands for the host."""
        if not 0 <= site < len(self.sites):
            return "a host operation"
        instruction = self.sites[site]
        where = f", source {instruction.location}" if instruction.location else ""
        return f"{self.kernel}, PTX line {instruction.line}, {instruction.opcode}{where}"

    def piece(self, values: Array, number: int, kind: str) -> Array:
        """Give one float of a packed register."""
        dtype = {"f16": "f2", "bf16": "u2", "f32": "f4"}[kind]
        return np.ascontiguousarray(np.asarray(values)[..., None]).view(dtype)[..., number]

    def apply(
        self,
        name: str,
        kind: str,
        result: Array,
        kinds: tuple[str, ...],
        floats: tuple[Array, ...],
        shadows: tuple[Array, ...],
    ) -> Array:
        """Shadows of an operation's results; bfloat16 is decoded for the arithmetic.

        name: of the operation, with those of its `MODIFIERS` that it has, joined by dots.
        """
        if kind != "bf16" and "bf16" not in kinds and "." not in name:  # nearly always
            return self.arithmetic.apply(name, kind, np.asarray(result), floats, shadows)
        values = tuple(
            numerics.decode_bf16(f) if k == "bf16" else f for k, f in zip(kinds, floats, strict=True)
        )
        answer = numerics.decode_bf16(result) if kind == "bf16" else result
        plain, _, modifiers = name.partition(".")
        if plain == "cvt" and kind == "bf16" and kinds[0] == "f32":
            values = (values[0].astype(np.float64),)  # a decoded bfloat16 is a float32 array too
        if modifiers and (modified := getattr(self.arithmetic, "modified", None)) is not None:
            found: Array = modified(
                plain, frozenset(modifiers.split(".")), kind, np.asarray(answer), values, shadows
            )
            return found
        return self.arithmetic.apply(plain, kind, np.asarray(answer), values, shadows)

    def from_integer(self, values: Array) -> Array:
        """Shadows of integers converted to float."""
        return self.arithmetic.lift(np.asarray(values), "integer")

    def logarithm(
        self, name: str, result: Array, floats: tuple[Array, Array], shadows: tuple[Array, Array], site: int
    ) -> Array:
        """Shadows of log(x) + i * log(2), computed on the bits of x; lost where it is another number.

        name: "log" or "log2", or "tanhf" for the hyperbolic tangent of x. floats, shadows: of x and i. Where
        x has no logarithm, what is computed here is not used.
        """
        wrong = logarithms.strays(name, result, *floats)
        if count := int(np.count_nonzero(wrong)):
            self._lose(count, site)
        with np.errstate(all="ignore"):
            found = self.apply(name, "f32", result, ("f32", "f32"), floats, shadows)
        return np.where(logarithms.defined(name, floats[0]) & ~wrong, found, self.lift(result, "f32"))

    def _lose(self, count: int, site: int) -> None:
        """Count shadows of other bits where they are read."""
        self.counters.desynchronised += count
        place = self.place(site)
        self.counters.lost[place] = self.counters.lost.get(place, 0) + count

    # Memory.

    def store_of(self, region: Region) -> Store:
        """Store of a region; those of tensors live as long as these."""
        store: Store | None = region.store
        if store is None:
            of_tensor = hasattr(region.keep, "untyped_storage")
            store = self.stores.of(region.keep) if of_tensor else self.stores.make(region.size)
            region.store = store
        return store

    def load(
        self, found: list[Located], shape: tuple[int, ...], width: int, count: int
    ) -> list[list[tuple[Array, Array]]]:
        """(shadow, tag) of each half-word of each loaded element of `width` bytes."""
        halves = max(width // 2, 1)
        result = [
            [
                (np.zeros(shape, dtype=self.arithmetic.dtype), np.zeros(shape, dtype=np.uint64))
                for _ in range(halves)
            ]
            for _ in range(count)
        ]
        if width < 2:
            return result
        for located in found:
            store, base = self.store_of(located.region), located.offsets >> 1
            for element in range(count):
                for half in range(halves):
                    slots = base + (element * halves + half)
                    if located.selection is None:
                        result[element][half] = (store.shadows[slots], store.tags[slots])
                    else:
                        shadows, tags = result[element][half]
                        shadows[located.selection], tags[located.selection] = (
                            store.shadows[slots],
                            store.tags[slots],
                        )
        return result

    def fetch(
        self,
        found: list[Located],
        values: list[Array],
        width: int,
        pieces: tuple[tuple[tuple[int, str], ...], ...],
        site: int,
    ) -> list[list[Array]]:
        """Shadows of loaded floats, lifted where there is none.

        values: loaded bits, one array an element of `width` bytes; pieces: (half-word, type) of the floats in
        each element; site: number of the load.
        """
        result = []
        halves = width // 2
        for element, (bits, floats) in enumerate(zip(values, pieces, strict=True)):
            rows = []
            for half, kind in floats:
                number = half // _HALVES_OF[kind]
                numbers = bits.view(_NUMPY[kind]) if len(floats) == 1 else self.piece(bits, number, kind)
                rows.append(self.fetched(found, numbers, kind, element * halves + half, site))
            result.append(rows)
        return result

    def fetched(self, found: list[Located], values: Array, kind: str, place: int, site: int) -> Array:
        """Shadows of one float a lane, `place` half-words after the address."""
        if not any(self.store_of(located.region).used for located in found):
            self.counters.lifted += values.size
            return self.lift(values, kind)
        shadows: Array = np.zeros(values.shape, dtype=self.arithmetic.dtype)
        tags: Array = np.zeros(values.shape, dtype=np.uint64)
        for located in found:
            store = self.store_of(located.region)
            slots = (located.offsets >> 1) + place
            if located.selection is None:
                shadows, tags = np.take(store.shadows, slots, axis=0), np.take(store.tags, slots)
            else:
                shadows[located.selection] = store.shadows[slots]
                tags[located.selection] = store.tags[slots]
        return self.read(values, kind, shadows, tags, site, True)

    def zeros_beyond(
        self, moved: list[list[tuple[Array, Array]]], inside: Array
    ) -> list[list[tuple[ArrayOrNumber, ArrayOrNumber]]]:
        """Give what a copy moves, of lanes that copy zeros nothing: it is lifted where it is read."""
        return [list(row) for row in moved]

    def save(
        self, found: list[Located], width: int, elements: list[list[tuple[ArrayOrNumber, ArrayOrNumber]]]
    ) -> None:
        """Write (shadow, tag) of each half-word; bytes and integers clear what they overwrite."""
        halves = max(width // 2, 1)
        for located in found:
            store, slots = self.store_of(located.region), located.offsets >> 1
            store.used = True
            for pieces in elements:
                for half in range(halves):
                    shadows, tags = pieces[half] if half < len(pieces) else (None, NO_SHADOW)
                    store.tags[slots] = located.active(tags) if isinstance(tags, np.ndarray) else tags
                    if shadows is not None:
                        kept = located.active(shadows) if isinstance(shadows, np.ndarray) else shadows
                        store.shadows[slots] = kept
                    slots += 1

    def met_in_part(self, site: int) -> None:
        """Take note that some warps of a block have passed a barrier without the others: nothing is lost."""

    def atomic(
        self,
        located: Located,
        what: Atomic,
        number: int,
        values: Array | list[Array],
        operands: list[Array],
    ) -> tuple[Observer, tuple[Array, Array]]:
        """Give an observer that does on shadows what an atomic does on floats, and the old shadows.

        values: the shadows of what is added, of a packed pair those of both. operands: numbers of the active
        lanes; of `cas` what is compared, and what is written. What is written by another operation than those
        that are done here has lost its shadow, even where the bits stay.
        """
        operation, kind, width = what.operation, what.kind, what.width
        store = self.store_of(located.region)
        store.used = True
        slots = (located.offsets.reshape(-1) >> 1) + number * (width // 2)
        scalar = PAIRS.get(kind)
        active = [
            np.ascontiguousarray(np.broadcast_to(located.active(v), located.offsets.shape)).reshape(-1)
            for v in (values if isinstance(values, list) else (values,))
        ]
        old = (np.zeros(slots.shape, dtype=self.arithmetic.dtype), np.zeros(slots.shape, dtype=np.uint64))
        floating = kind in ("f16", "bf16", "f32", "f64")

        def observe(turn: slice | Array, before: Array, after: Array) -> None:
            place = slots[turn]
            old[0][turn], old[1][turn] = store.shadows[place], store.tags[place]
            if scalar and operation in ("add", "min", "max"):
                for piece, given in enumerate(active):
                    numbers = (before, operands[-1][turn], after)
                    first, second, result = (self.piece(n, piece, scalar) for n in numbers)
                    slot = place + piece
                    present = self.read(first, scalar, store.shadows[slot], store.tags[slot])
                    store.shadows[slot] = self.apply(
                        operation, scalar, result, (scalar, scalar), (first, second), (present, given[turn])
                    )
                    store.tags[slot] = tag(result.view("u2"), 16)
                return
            if floating and operation in ("add", "min", "max"):
                present = self.read(before, kind, store.shadows[place], store.tags[place])
                floats = (before, operands[-1][turn])
                store.shadows[place] = self.apply(
                    operation, kind, after, (kind, kind), floats, (present, active[0][turn])
                )
                store.tags[place] = tag(after.view(f"u{width}"), 8 * width)
            elif operation == "exch" and floating:
                store.shadows[place] = active[0][turn]
                store.tags[place] = tag(after.view(f"u{width}"), 8 * width)
            else:
                place = place[before == operands[0][turn]] if operation == "cas" else place
                for half in range(max(width // 2, 1)):
                    store.tags[place + half] = LOST
                return
            for half in range(1, width // 2):
                store.tags[place + half] = NO_SHADOW

        return observe, old

    # Tensors.

    def set(self, tensor: torch.Tensor, values: Array) -> None:
        """Give every element of a tensor its shadow. values: an array of the tensor's shape."""
        store, index, width = self.slots_of(tensor)
        store.used = True
        bits = _bits(tensor)
        store.shadows[index] = values
        store.tags[index] = tag(bits, 8 * width)

    def get(self, tensor: torch.Tensor) -> Array:
        """Shadows of a tensor's elements, lifted where there is none."""
        import torch

        store, index, _ = self.slots_of(tensor)
        kind = {2: "f16", 4: "f32", 8: "f64"}[tensor.element_size()]
        values = _bits(tensor)
        if tensor.dtype == torch.bfloat16:
            kind = "bf16"
        else:
            values = values.view(f"f{tensor.element_size()}")
        return self.read(values, kind, store.shadows[index], store.tags[index], -1, store.used)

    def slots_of(self, tensor: torch.Tensor) -> tuple[Store, Array, int]:
        """Store of a tensor's storage, the number of each element's first slot, and bytes of an element."""
        width = tensor.element_size()
        index = np.full(tuple(tensor.shape), tensor.storage_offset(), dtype=np.int64)
        for axis, (extent, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
            steps = np.arange(extent, dtype=np.int64) * stride
            index += steps.reshape((-1,) + (1,) * (tensor.dim() - 1 - axis))
        return self.stores.of(tensor), index * (width // 2), width

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's storage holds any shadows."""
        return self.stores.known(tensor) is not None

    def tells(self, tensor: torch.Tensor) -> bool:
        """Whether an operation that reads a tensor and is not followed loses shadows."""
        return bool(tensor.is_floating_point()) and self.has(tensor)

    def clear(self, tensor: torch.Tensor) -> None:
        """Forget the shadows of a tensor's elements, which something else has written."""
        if self.has(tensor):
            store, index, width = self.slots_of(tensor)
            for half in range(max(width // 2, 1)):
                store.tags[index + half] = NO_SHADOW


def _bits(tensor: torch.Tensor) -> Array:
    """Bit patterns of a tensor's elements."""
    import torch

    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    size = tensor.element_size()
    return tensor.detach().contiguous().view(kinds[size]).numpy().view(f"u{size}")
