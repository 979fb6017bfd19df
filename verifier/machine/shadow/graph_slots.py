"""Where the nodes of floats lie: each half-word has a code that says of which node it is which part.

A code is `format << 58 | part << 56 | node`. Format 0 is unknown, so that all memory and every register is
unknown until something writes it; `LITERAL` marks bits that no data can change, which become a literal where
they are read. Nothing here asks whether bits fit: what is not exactly a node's own half-words is unknown.
"""

# ruff: noqa: PLR0917 - these are called by position, many times a launch

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.execute.collectives import EVERY_LANE
from verifier.machine.execute.reuse_cache import ReuseCache
from verifier.machine.shadow.graph_nodes import NUMBER_BITS, Nodes, as_bits
from verifier.machine.shadow.shadow_memory import Store, Stores
from verifier.machine.shadow.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from verifier.machine.arithmetic.numerics import Array, ArrayOrNumber
    from verifier.machine.execute.atomics import Atomic
    from verifier.machine.execute.memory import Located
    from verifier.machine.ptx.syntax import Instruction
    from verifier.machine.shadow.slots import ShadowArithmetic

FORMATS = {"f16": 1, "bf16": 2, "f32": 3, "f64": 4, "pred": 5, "b32": 7}
_NAMES = {number: name for name, number in FORMATS.items()}
_FORMAT, _PART = NUMBER_BITS + 2, NUMBER_BITS
"""Bits below the format, and below the part, of a code."""
_WHOLE = {kind: number << 2 for kind, number in FORMATS.items()}
"""What lies above the node in the code of a whole float."""
HALF = 1 << _PART
"""What is added to the code of a half-word to have that of the next one of the float."""
_FIXED = 6
LITERAL = _FIXED << _FORMAT
NUMBER = (1 << _PART) - 1
"""The bits of a code that are the number of its node."""
_NONE = np.zeros(0, dtype=np.int64)
_MARK = np.zeros((), dtype=np.uint64)
"""A mark beside each code that is loaded, where other slots have tags; nothing reads it."""
_OTHER = {"f32": ("b32", "from_bits.f32"), "b32": ("f32", "to_bits.b32")}
KINDS = {"torch.float16": "f16", "torch.bfloat16": "bf16", "torch.float32": "f32", "torch.float64": "f64"}


_WAVES = ReuseCache()
"""Waves that wait for another recording: a session is short, and records few launches of each kernel."""

_INFINITE = {"f16": (2, 0x7C00), "bf16": (2, 0x7F80), "f32": (4, 0x7F800000), "f64": (8, 0x7FF << 52)}
"""Bytes of each format, and the bits of its infinity without the sign: those of a NaN are more."""


class _Fresh(Stores):
    """Stores whose vacated memory is unknown again."""

    def vacated(self, size: int) -> Store | None:
        """Give a store of freed memory, without its old codes."""
        store = super().vacated(size)
        if store is not None:
            store.shadows.fill(0)
        return store


@dataclass(frozen=True, kw_only=True)
class TakenBranch:
    """Predicates by which lanes took one branch, and whether they held; line: of the user's source."""

    nodes: Array
    truth: Array
    line: str


class GraphSlots(Slots):
    """Codes of all that a session runs, and the nodes to which they belong.

    `asked`: host operations by which Python learns what data are, and may decide on it.
    `conditions`: by which data branches were taken. `stored_twice`: nodes that one lane stored where
    another, at the same instruction, stored the other; nothing orders the two. `stored_by_copies`: the same
    in shared memory where threads may be copies of each other, whose sums may differ by rounding. `clashes`:
    names of memory in which something else than nodes was stored so. `undefined`: in words, collectives of
    which a lane is no member, shuffles that give one what another that takes no part in them holds, integers
    that are divided by zero, and branches of whole warps at which lanes part. `parted`: barriers that some
    warps of a block pass without the others.
    """

    def __init__(self, arithmetic: ShadowArithmetic) -> None:
        """Start with no node; everything is unknown."""
        super().__init__(arithmetic)
        self.stores = _Fresh(arithmetic.dtype)
        self.prepared_waves = _WAVES
        self.nodes = Nodes()
        self.asked: set[str] = set()
        self.conditions: list[TakenBranch] = []
        self.stored_twice: list[tuple[Array, Array]] = []
        self.stored_by_copies: list[tuple[Array, Array]] = []
        self.clashes: set[str] = set()
        self.undefined: set[str] = set()
        self.parted: set[str] = set()
        self._lines: dict[int, str] = {}

    # Nodes.

    def enter(self, kernel: str, sites: list[Instruction]) -> None:
        """Take note of the kernel that runs next, as `Slots` does."""
        if sites is not self.sites:
            self._lines = {}
        super().enter(kernel, sites)

    def line(self, site: int) -> str:
        """Line of the user's source of an instruction of the kernel that runs."""
        found = self._lines.get(site)
        if found is None:
            known = 0 <= site < len(self.sites) and self.sites[site].location is not None
            found = self._lines[site] = str(self.sites[site].location) if known else ""
        return found

    def literal(self, bits: int, kind: str) -> Array:
        """Code of a literal of the program's text."""
        value = np.asarray(bits, dtype=np.uint64)
        return self.coded(self.nodes.add(f"literal:{kind}", (), value=value), kind)

    @staticmethod
    def coded(numbers: Array, kind: str) -> Array:
        """Codes of whole floats."""
        return np.asarray(numbers | FORMATS[kind] << _FORMAT)

    def numbers(self, codes: Array, values: Array, kind: str, site: int) -> Array:
        """Give the nodes of floats; literals and unknown ones become nodes here."""
        return self._known(codes, values, kind, site) & NUMBER

    def _known(self, codes: Array, values: Array, kind: str, site: int) -> Array:
        """Give codes of floats, or numbers of nodes that are made here."""
        codes = np.asarray(codes)
        fits = codes >> _PART == _WHOLE[kind]
        if np.count_nonzero(fits) == codes.size:
            return codes
        if kind in _OTHER:
            codes = self._reread(codes, kind, site)
            fits = codes >> _PART == _WHOLE[kind]
            if fits.all():
                return codes
        fixed = codes >> _FORMAT == _FIXED
        shape = np.broadcast_shapes(codes.shape, np.shape(values))
        line = self.line(site)
        if fixed.all():
            return self.nodes.add(
                f"literal:{kind}", shape, value=as_bits(np.asarray(values), kind), line=line
            )
        found = np.array(np.broadcast_to(codes, shape))
        fits, fixed = np.broadcast_to(fits, shape), np.broadcast_to(fixed, shape)
        lost = ~(fits | fixed)
        if fixed.any():
            bits = np.broadcast_to(as_bits(np.asarray(values), kind), shape)[fixed]
            found[fixed] = self.nodes.add(f"literal:{kind}", bits.shape, value=bits, line=line)
        if count := int(np.count_nonzero(lost)):
            found[lost] = self.nodes.add(f"unknown:{self._reason(site)}", (count,), line=line)
        return found

    def decided(self, codes: Array, truth: Array, site: int) -> None:
        """Note predicates by which branches are taken, unless they are constants, and what the run found."""
        shape = np.broadcast_shapes(np.shape(codes), np.shape(truth))
        codes, truth = np.broadcast_to(codes, shape), np.broadcast_to(truth, shape)
        by_data = codes >> _FORMAT != _FIXED
        if by_data.any():
            nodes = self.numbers(codes[by_data], truth[by_data], "pred", site)
            self.conditions.append(TakenBranch(nodes=nodes, truth=truth[by_data], line=self.line(site)))

    def _reread(self, codes: Array, kind: str, site: int) -> Array:
        """Codes where a float32 is read as 32 bits, or the other way round, by a node that says so."""
        other, name = _OTHER[kind]
        found = codes >> _PART == _WHOLE[other]
        if not found.any():
            return codes
        made = self.nodes.add(name, codes[found].shape, (codes[found],), line=self.line(site))
        result = codes.copy()
        result[found] = self.coded(made, kind)
        return result

    def _reason(self, site: int) -> str:
        if not 0 <= site < len(self.sites):
            return "read by the host"
        return f"read by {self.sites[site].opcode}"

    @staticmethod
    def merged_word(halves: tuple[Array, Array], word: Callable[[], Array]) -> tuple[Array, Array]:
        """Codes of both half-words of two words that are joined: those of a node where neither is known."""
        low, high = np.broadcast_arrays(*halves)
        lost = (low >> _FORMAT == 0) & (high >> _FORMAT == 0)
        if not lost.any():
            return low, high
        made = word()
        return np.where(lost, made, low), np.where(lost, made + HALF, high)

    def node(
        self,
        name: str,
        kind: str,
        result: Array,
        kinds: tuple[str, ...],
        codes: tuple[Array, ...],
        values: tuple[Array, ...],
        site: int,
    ) -> Array:
        """Make the nodes of an operation's results; return their codes."""
        operands = [self._known(c, v, k, site) for c, v, k in zip(codes, values, kinds, strict=True)]
        shape = np.shape(result)
        if any(one.shape != shape for one in operands):
            shape = np.broadcast_shapes(shape, *(one.shape for one in operands))
        first = self.nodes.append(name, shape, operands, line=self.line(site))
        fixed = FORMATS[kind] << _FORMAT
        return np.arange(first | fixed, self.nodes.count | fixed).reshape(shape)

    def select(
        self,
        condition: Array,
        chosen: Array,
        first: Array,
        first_value: Array,
        second: Array,
        second_value: Array,
        width: int,
        site: int,
    ) -> Array:
        """Codes of `condition ? first : second` where data decide; chosen: what the run decided.

        The format is that of the operands, which have `width` bits.
        """
        formats = {int(f) for c in (first, second) for f in np.unique(np.asarray(c) >> _FORMAT)} - {_FIXED}
        if formats == {FORMATS["f32"], FORMATS["b32"]}:
            formats = {FORMATS["f32"]}
        kind = _NAMES.get(formats.pop(), "") if len(formats) == 1 else "f32" if width == 32 else ""
        if formats or {"f16": 16, "bf16": 16, "f32": 32, "f64": 64, "b32": 32}.get(kind) != width:
            return np.zeros(
                np.broadcast_shapes(np.shape(chosen), np.shape(first), np.shape(second)), np.int64
            )
        view = {"f16": "f2", "bf16": "u2", "f32": "f4", "f64": "f8", "b32": "u4"}[kind]
        values = [np.asarray(v).view(view) for v in (first_value, second_value)]
        return self.node(
            "ite",
            kind,
            np.asarray(chosen),
            ("pred", kind, kind),
            (condition, first, second),
            (np.asarray(chosen), *values),
            site,
        )

    def select_word(
        self,
        condition: Array,
        chosen: Array,
        first: tuple[Array, Array],
        first_bits: Array,
        second: tuple[Array, Array],
        second_bits: Array,
        site: int,
    ) -> tuple[Array, Array]:
        """As `select`, of 32 bits whose half-words have codes of their own: a float32, or two floats."""
        sides = [
            self.joined(halves, bits, "f32", site)
            for halves, bits in ((first, first_bits), (second, second_bits))
        ]
        if all((side >> _FORMAT != 0).all() for side in sides):
            found = self.select(condition, chosen, sides[0], first_bits, sides[1], second_bits, 32, site)
            return found, found + HALF
        low, high = (
            self.select(
                condition,
                chosen,
                first[half],
                (np.asarray(first_bits) >> 16 * half).astype("u2"),
                second[half],
                (np.asarray(second_bits) >> 16 * half).astype("u2"),
                16,
                site,
            )
            for half in range(2)
        )
        return low, high

    def joined(self, halves: tuple[Array, ...], bits: Array, kind: str, site: int) -> Array:
        """Code of a float whose half-words have these codes.

        A bfloat16 above 16 bits that are zero is a float32.
        """
        low = np.asarray(halves[0])
        whole = low >> _PART
        fits = whole == _WHOLE[kind]
        if kind == "f32":
            fits = fits | (whole == _WHOLE["b32"])  # which is reread where it is used
        for part, code in enumerate(halves[1:], 1):
            fits = fits & (code == low + part * HALF)
        if fits.all():
            return low
        fixed = whole >> 2 == _FIXED
        for code in halves[1:]:
            fixed = fixed & (np.asarray(code) >> _FORMAT == _FIXED)
        found = np.where(fits, low, np.where(fixed, LITERAL, 0))
        if kind != "f32":
            return found
        high = np.asarray(halves[1])
        empty = (np.asarray(bits).view("u4") & np.uint32(0xFFFF)) == 0
        wide = (whole >> 2 == _FIXED) & empty & (high >> _PART == _WHOLE["bf16"])
        if wide.any():
            wide, high = np.broadcast_arrays(wide, high)
            found = np.array(np.broadcast_to(found, wide.shape))
            made = self.nodes.add(
                "cvt.f32.bf16", (int(np.count_nonzero(wide)),), (high[wide],), line=self.line(site)
            )
            found[wide] = self.coded(made, "f32")
        return found

    @staticmethod
    def exchanged(defined: Array, codes: Array) -> Array:
        """Code of what lanes get from others; unknown where that is not defined."""
        return codes if defined is EVERY_LANE else np.where(defined, codes, 0)

    def exchange(self, defined: Array, site: int) -> None:
        """Take note where lanes exchange something, and it is not defined what one gets."""
        if not defined.all():
            place = self._place(site)
            why = f"a lane gets something by {place}, in which it or the lane that it reads takes no part"
            self.undefined.add(why)

    def goes_together(self, together: Array, site: int) -> None:
        """Take note where lanes of a warp part, and the code says that they do not (PTX ISA, bra.uni)."""
        if not together.all():
            self.undefined.add(f"{self._place(site)} parts the lanes of a warp")

    def divided(self, divisor: Array, guard: Array | None, site: int) -> None:
        """Take note where an integer is divided by zero: what that gives is a device's own (PTX ISA, div)."""
        zero = np.asarray(divisor) == 0
        if (zero if guard is None else zero & guard).any():
            self.undefined.add(f"{self._place(site)} divides by zero")

    def read_as_bits(self, bits: Array, kind: str, guard: Array | None, site: int) -> None:
        """Take note where the bits of a NaN that was computed are read: they are a device's own."""
        width, infinite = _INFINITE[kind]
        held = np.ascontiguousarray(bits)
        pieces = max(held.itemsize // width, 1)
        parts = held.view(f"u{held.itemsize // pieces}").reshape(*np.shape(bits), pieces)
        nan = ((parts & ((1 << (8 * width - 1)) - 1)) > infinite).any(axis=-1)
        if (nan if guard is None else nan & guard).any():
            self.undefined.add(f"{self._place(site)} reads the bits of a NaN")

    def met_in_part(self, site: int) -> None:
        """Take note of a barrier that some warps of a block pass without the others."""
        self.parted.add(self._place(site))

    def _place(self, site: int) -> str:
        where = self.line(site)
        return f"{self.sites[site].opcode}{f' at {where}' if where else ''}"

    @staticmethod
    def merged(first: Array, first_bits: Array, second: Array, second_bits: Array) -> Array:
        """Code of a half-word of `a | b`: that of one side where the other is a literal zero."""
        fixed = [np.asarray(c) >> _FORMAT == _FIXED for c in (first, second)]
        none = [f & (np.asarray(b) == 0) for f, b in zip(fixed, (first_bits, second_bits), strict=True)]
        both = np.where(fixed[0] & fixed[1], LITERAL, 0)
        return np.where(none[0], second, np.where(none[1], first, both))

    # Memory.

    def load(
        self, found: list[Located], shape: tuple[int, ...], width: int, count: int
    ) -> list[list[tuple[Array, Array]]]:
        """Codes of each half-word of each loaded element, each with a mark that nothing reads."""
        halves = max(width // 2, 1)
        codes: Array = np.zeros((count * halves, *shape), dtype=np.int64) if width < 2 or not found else _NONE
        for located in found if width > 1 else ():
            store, base = self.store_of(located.region), located.offsets >> 1
            slots = base + np.arange(count * halves).reshape((-1,) + (1,) * base.ndim)
            taken = store.shadows.take(slots)
            if located.selection is None:
                codes = taken
                continue
            codes = codes if codes.size else np.zeros((count * halves, *shape), dtype=np.int64)
            codes[:, located.selection] = taken
        return [[(codes[n * halves + half], _MARK) for half in range(halves)] for n in range(count)]

    def zeros_beyond(
        self, moved: list[list[tuple[Array, Array]]], inside: Array
    ) -> list[list[tuple[ArrayOrNumber, ArrayOrNumber]]]:
        """Give what a copy moves, of lanes that copy zeros a literal: no input decides which do."""
        return [[(np.where(inside, codes, LITERAL), mark) for codes, mark in row] for row in moved]

    def save(
        self,
        found: list[Located],
        width: int,
        elements: list[list[tuple[ArrayOrNumber, ArrayOrNumber]]],
        bits: Sequence[Array | None] = (),
    ) -> None:
        """Write the code of each half-word; a byte leaves a half-word known only if both are literals.

        bits: what lanes have stored, None where all of them the same.
        """
        for located in found:
            store, base = self.store_of(located.region), located.offsets >> 1
            store.used = True
            by_copies = self.replicated and located.region.keep is None
            twice = self.stored_by_copies if by_copies else self.stored_twice
            for number, pieces in enumerate(elements):
                if number < len(bits):
                    self._compare_literals(located, number, width, [code for code, _ in pieces], bits[number])
                given = [located.active(c) if isinstance(c, np.ndarray) else c for c, _ in pieces]
                if width < 2:
                    slots = (located.offsets + number) >> 1
                    fixed = np.asarray(given[0]) >> _FORMAT == _FIXED
                    fixed = fixed & (store.shadows[slots] >> _FORMAT == _FIXED)
                    # Two lanes may write the bytes of one half-word: it is known if each leaves it so.
                    store.shadows[slots[~np.broadcast_to(fixed, slots.shape)]] = 0
                    continue
                for half, code in enumerate(given):
                    place = number * (width // 2) + half
                    slots = base + place if place else base
                    store.shadows[slots] = code
                    if np.ndim(code) and slots.size > 1:
                        self._compare(located, store.shadows[slots], np.asarray(code), twice)

    def _compare_literals(
        self, located: Located, number: int, width: int, codes: list[ArrayOrNumber], bits: Array | None
    ) -> None:
        """Note lanes that stored another literal than the one that lies there: literals have one code."""
        if bits is None or np.size(bits) < 2 or located.offsets.size < 2:
            return
        stored = located.active(bits)
        differs = located.region.view(f"u{width}")[located.offsets // width + number] != stored
        if not differs.any():
            return
        fixed = [np.asarray(located.active(c) if isinstance(c, np.ndarray) else c) for c in codes]
        if any((differs & (code >> _FORMAT == _FIXED)).any() for code in fixed):
            self.clashes.add(located.region.name)

    def _compare(
        self, located: Located, kept: Array, stored: Array, twice: list[tuple[Array, Array]]
    ) -> None:
        """Note which lanes stored something else than what another lane left there."""
        lost = kept != stored
        if not lost.any():
            return
        kept, stored = np.broadcast_to(kept, lost.shape)[lost], np.broadcast_to(stored, lost.shape)[lost]
        alike = kept >> _PART == stored >> _PART
        nodes = alike & (kept >> _FORMAT != 0) & (kept >> _FORMAT != _FIXED)
        if not nodes.all():
            self.clashes.add(located.region.name)
        twice.append((stored[nodes] & NUMBER, kept[nodes] & NUMBER))

    def atomic(
        self, located: Located, what: Atomic, number: int, values: object, operands: list[Array]
    ) -> tuple[Callable[[slice | Array, Array, Array], None], tuple[Array, Array]]:
        """Forget what an atomic writes, which depends on an order; what it returns is unknown."""
        store = self.store_of(located.region)
        store.used = True
        slots = (located.offsets.reshape(-1) >> 1) + number * (what.width // 2)
        old = (np.zeros(slots.shape, dtype=np.int64), np.zeros(slots.shape, dtype=np.uint64))

        def observe(turn: slice | Array, before: Array, after: Array) -> None:
            for half in range(max(what.width // 2, 1)):
                store.shadows[slots[turn] + half] = 0

        return observe, old

    # Tensors.

    def set(self, tensor: torch.Tensor, values: ArrayOrNumber) -> None:
        """Give every element of a tensor its code: of a whole float, or `LITERAL`."""
        store, index, width = self.slots_of(tensor)
        store.used = True
        if width < 2:
            store.shadows[np.unique(index_of_bytes(tensor))] = 0
            return
        for half in range(width // 2):
            store.shadows[index + half] = np.asarray(values) + half * HALF

    def get(self, tensor: torch.Tensor) -> Array:
        """Codes of a tensor's elements, as whole floats."""
        store, index, width = self.slots_of(tensor)
        kind = KINDS[str(tensor.dtype)]
        halves = tuple(store.shadows[index + half] for half in range(width // 2))
        return halves[0] if len(halves) == 1 else self.joined(halves, _bits(tensor), kind, -1)

    def outputs(self, tensor: torch.Tensor) -> Array:
        """Nodes of a tensor's elements."""
        kind = KINDS[str(tensor.dtype)]
        view = {"f16": "f2", "bf16": "u2", "f32": "f4", "f64": "f8"}[kind]
        return np.broadcast_to(
            self.numbers(self.get(tensor), _bits(tensor).view(view), kind, -1), tuple(tensor.shape)
        )

    def register(self, name: str, tensor: torch.Tensor) -> None:
        """Make the elements of a tensor the leaves of an input, numbered in row-major order."""
        kind = KINDS[str(tensor.dtype)]
        shape = tuple(tensor.shape)
        order = np.arange(tensor.numel(), dtype=np.uint64).reshape(shape)
        self.set(tensor, self.coded(self.nodes.add(f"input:{name}", shape, value=order), kind))

    def tells(self, tensor: torch.Tensor) -> bool:
        """Whether anything in a tensor's storage depends on data."""
        store = self.stores.known(tensor)
        return store is not None and bool(((store.shadows >> _FORMAT) % _FIXED).any())

    def fixed(self, tensor: torch.Tensor) -> bool:
        """Whether all elements of a tensor are the same for all inputs."""
        if self.stores.known(tensor) is None or tensor.element_size() < 2:
            return False
        store, index, width = self.slots_of(tensor)
        return all((store.shadows[index + n] >> _FORMAT == _FIXED).all() for n in range(width // 2))

    def clear(self, tensor: torch.Tensor) -> None:
        """Forget what a tensor's elements are."""
        store = self.stores.known(tensor)
        if store is None:
            return
        _, index, width = self.slots_of(tensor)
        if width < 2:
            store.shadows[np.unique(index_of_bytes(tensor))] = 0
        for half in range(width // 2):
            store.shadows[index + half] = 0


def index_of_bytes(tensor: torch.Tensor) -> Array:
    """Half-words in which the elements of a tensor of bytes lie."""
    index = np.full(tuple(tensor.shape), tensor.storage_offset(), dtype=np.int64)
    for axis, (extent, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        index += (np.arange(extent) * stride).reshape((-1,) + (1,) * (tensor.dim() - 1 - axis))
    return index >> 1


def _bits(tensor: torch.Tensor) -> Array:
    """Bits of a tensor, of a copy: an array that shared its memory could be written to by others."""
    import torch

    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    size = tensor.element_size()
    copied = tensor.detach().clone(memory_format=torch.contiguous_format)
    return copied.view(kinds[size]).numpy().view(f"u{size}")
