"""Codes of floats in registers: each operation on data makes nodes, and what only moves keeps its code.

Nothing here asks whether bits fit: what is not exactly a node's own half-words is unknown.
"""

# ruff: noqa: PLR0917 - these are called by position, many times a launch

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.execute.collectives import EVERY_LANE
from verifier.machine.shadow.graph_nodes import Nodes, as_bits
from verifier.machine.shadow.node_codes import (
    FIXED,
    FORMAT_AT,
    FORMATS,
    HALF,
    INFINITE,
    LITERAL,
    NAMES,
    NUMBER,
    PART_AT,
    WHOLE,
    coded,
)
from verifier.machine.shadow.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Callable

    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.ptx.syntax import Instruction
    from verifier.machine.shadow.slots import ShadowArithmetic

_OTHER = {"f32": ("b32", "from_bits.f32"), "b32": ("f32", "to_bits.b32")}


@dataclass(frozen=True, kw_only=True)
class TakenBranch:
    """Predicates by which lanes took one branch, and whether they held; line: of the user's source."""

    nodes: Array
    truth: Array
    line: str


class RegisterCodes(Slots):
    """Codes of all floats in registers, and the nodes to which they belong.

    `conditions`: by which data branches were taken. `undefined`: in words, collectives of
    which a lane is no member, shuffles that give one what another that takes no part in them holds, integers
    that are divided by zero, and branches of whole warps at which lanes part. `parted`: barriers that some
    warps of a block pass without the others.
    """

    def __init__(self, arithmetic: ShadowArithmetic) -> None:
        """Start with no node; everything is unknown."""
        super().__init__(arithmetic)
        self.nodes = Nodes()
        self.conditions: list[TakenBranch] = []
        self.undefined: set[str] = set()
        self.parted: set[str] = set()
        self._lines: dict[int, str] = {}

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
        return coded(self.nodes.add(f"literal:{kind}", (), value=value), kind)

    def numbers(self, codes: Array, values: Array, kind: str, site: int) -> Array:
        """Give the nodes of floats; literals and unknown ones become nodes here."""
        return self._known(codes, values, kind, site) & NUMBER

    def _known(self, codes: Array, values: Array, kind: str, site: int) -> Array:
        """Give codes of floats, or numbers of nodes that are made here."""
        codes = np.asarray(codes)
        fits = codes >> PART_AT == WHOLE[kind]
        if np.count_nonzero(fits) == codes.size:
            return codes
        if kind in _OTHER:
            codes = self._reread(codes, kind, site)
            fits = codes >> PART_AT == WHOLE[kind]
            if fits.all():
                return codes
        fixed = codes >> FORMAT_AT == FIXED
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
        by_data = codes >> FORMAT_AT != FIXED
        if by_data.any():
            nodes = self.numbers(codes[by_data], truth[by_data], "pred", site)
            self.conditions.append(TakenBranch(nodes=nodes, truth=truth[by_data], line=self.line(site)))

    def _reread(self, codes: Array, kind: str, site: int) -> Array:
        """Codes where a float32 is read as 32 bits, or the other way round, by a node that says so."""
        other, name = _OTHER[kind]
        found = codes >> PART_AT == WHOLE[other]
        if not found.any():
            return codes
        made = self.nodes.add(name, codes[found].shape, (codes[found],), line=self.line(site))
        result = codes.copy()
        result[found] = coded(made, kind)
        return result

    def _reason(self, site: int) -> str:
        if not 0 <= site < len(self.sites):
            return "read by the host"
        return f"read by {self.sites[site].opcode}"

    @staticmethod
    def merged_word(halves: tuple[Array, Array], word: Callable[[], Array]) -> tuple[Array, Array]:
        """Codes of both half-words of two words that are joined: those of a node where neither is known."""
        low, high = np.broadcast_arrays(*halves)
        lost = (low >> FORMAT_AT == 0) & (high >> FORMAT_AT == 0)
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
        fixed = FORMATS[kind] << FORMAT_AT
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
        formats = {int(f) for c in (first, second) for f in np.unique(np.asarray(c) >> FORMAT_AT)} - {FIXED}
        if formats == {FORMATS["f32"], FORMATS["b32"]}:
            formats = {FORMATS["f32"]}
        kind = NAMES.get(formats.pop(), "") if len(formats) == 1 else "f32" if width == 32 else ""
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
        if all((side >> FORMAT_AT != 0).all() for side in sides):
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
        whole = low >> PART_AT
        fits = whole == WHOLE[kind]
        if kind == "f32":
            fits = fits | (whole == WHOLE["b32"])  # which is reread where it is used
        for part, code in enumerate(halves[1:], 1):
            fits = fits & (code == low + part * HALF)
        if fits.all():
            return low
        fixed = whole >> 2 == FIXED
        for code in halves[1:]:
            fixed = fixed & (np.asarray(code) >> FORMAT_AT == FIXED)
        found = np.where(fits, low, np.where(fixed, LITERAL, 0))
        if kind != "f32":
            return found
        high = np.asarray(halves[1])
        empty = (np.asarray(bits).view("u4") & np.uint32(0xFFFF)) == 0
        wide = (whole >> 2 == FIXED) & empty & (high >> PART_AT == WHOLE["bf16"])
        if wide.any():
            wide, high = np.broadcast_arrays(wide, high)
            found = np.array(np.broadcast_to(found, wide.shape))
            made = self.nodes.add(
                "cvt.f32.bf16", (int(np.count_nonzero(wide)),), (high[wide],), line=self.line(site)
            )
            found[wide] = coded(made, "f32")
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
        width, infinite = INFINITE[kind]
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
        fixed = [np.asarray(c) >> FORMAT_AT == FIXED for c in (first, second)]
        none = [f & (np.asarray(b) == 0) for f, b in zip(fixed, (first_bits, second_bits), strict=True)]
        both = np.where(fixed[0] & fixed[1], LITERAL, 0)
        return np.where(none[0], second, np.where(none[1], first, both))
