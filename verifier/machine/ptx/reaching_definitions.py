"""Which results the registers of compiled code hold where they are read."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import accumulate
from typing import TYPE_CHECKING

from verifier.machine.ptx.liveness import following, read_before_written
from verifier.machine.ptx.syntax import registers_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from verifier.machine.ptx.basic_blocks import Program
    from verifier.machine.ptx.syntax import Instruction, Operand

HALVES = frozenset({"f16", "bf16", "f16x2", "bf16x2"})
FLOATS = frozenset({"f32", "f64", "f32x2", *HALVES})
# What moves the bits of a half between registers without computing with them.
_MOVING = frozenset({"mov", "prmt", "shl", "shr", "shf", "bfe", "bfi", "and", "or", "lop3", "selp", "cvt"})
OUTSIDE = -1
"""The place of what no instruction wrote."""


@dataclass(kw_only=False)
class ReachingDefinitions:
    """Which instruction's result each register holds where it is read."""

    program: Program
    instructions: list[Instruction] = field(init=False)
    blocks: list[int] = field(init=False)

    def __post_init__(self) -> None:
        """Give every instruction a number, and remember its block."""
        self.instructions = list(self.program.instructions())
        self.blocks = [n for n, block in enumerate(self.program.blocks) for _ in block.instructions]

    @cached_property
    def reaching(self) -> list[dict[str, frozenset[int]]]:
        """For each instruction, the definitions of the registers that it may read."""
        blocks = self.program.blocks
        starts = list(accumulate((len(block.instructions) for block in blocks), initial=0))
        read_later = frozenset[str]().union(*(read_before_written(block)[0] for block in blocks))
        read_later -= self._settled.keys()
        entering: list[dict[str, frozenset[int]]] = [{} for _ in blocks]
        waiting, seen = {0} if blocks else set[int](), set[int]()
        while waiting:
            number = min(waiting)
            waiting.remove(number)
            seen.add(number)
            leaving = self._through(number, starts[number], entering[number], None)
            kept = {name: places for name, places in leaving.items() if name in read_later}
            after = following(blocks, number)
            waiting |= {n for n in after if _merge(entering[n], kept) or n not in seen}
        result: list[dict[str, frozenset[int]]] = [{} for _ in self.instructions]
        for number in range(len(blocks)):
            self._through(number, starts[number], entering[number], result)
        return result

    @cached_property
    def _settled(self) -> dict[str, frozenset[int]]:
        """What each register holds after the one block that writes it, where nothing reads it before.

        Most are so, and follow no path: code that is compiled reads none that it may not have written.
        """
        writing: dict[str, list[int]] = {}
        read: dict[str, int] = {}
        for at, instruction in enumerate(self.instructions):
            for name in instruction.read:
                read.setdefault(name, at)
            for name in instruction.written:
                writing.setdefault(name, []).append(at)
        return {
            name: reduce(self._held_after, places, frozenset[int]())
            for name, places in writing.items()
            if self.blocks[places[0]] == self.blocks[places[-1]] and read.get(name, places[0] + 1) > places[0]
        }

    def _held_after(self, before: frozenset[int], at: int) -> frozenset[int]:
        """Return what a register may hold that an instruction writes; one with a guard may leave it."""
        return (before if self.instructions[at].guard is not None else frozenset()) | {at}

    def _through(
        self,
        number: int,
        at: int,
        entering: dict[str, frozenset[int]],
        told: list[dict[str, frozenset[int]]] | None,
    ) -> dict[str, frozenset[int]]:
        """Follow a block from what enters it; note in `told` what each of its instructions reads."""
        known, settled = dict(entering), self._settled
        for place, instruction in enumerate(self.program.blocks[number].instructions, at):
            if told is not None:
                held = {n: known.get(n) or settled.get(n) for n in instruction.read}
                told[place] = {n: places for n, places in held.items() if places}
            for name in instruction.written:
                known[name] = self._held_after(known.get(name, frozenset()), place)
        return known

    def sources(self, at: int, operands: Iterable[Operand]) -> set[int]:
        """Return the instructions whose results these operands of an instruction may be."""
        names = [name for operand in operands for name in registers_of(operand)]
        found: set[int] = set()
        for name in names:
            found |= self.reaching[at].get(name, frozenset({OUTSIDE}))
        return found

    def origins(self, at: int, operands: Iterable[Operand]) -> set[tuple[int, bool]]:
        """Return the instructions that bits come from by moves alone, and whether a shuffle brought them."""
        found, seen = set(), set()
        waiting = [(source, False) for source in self.sources(at, operands)]
        while waiting:
            place = waiting.pop()
            if place in seen:
                continue
            seen.add(place)
            source, brought = place
            instruction = None if source == OUTSIDE else self.instructions[source]
            if instruction is None or not moves(instruction):
                found.add(place)
                continue
            shuffles = instruction.parts[0] == "shfl"
            operands = instruction.operands[1:2] if shuffles else instruction.operands[1:]
            further = self.sources(source, operands)
            # A constant that is moved has no source.
            waiting += [(s, brought or shuffles) for s in further]
            if not further:
                found.add(place)
        return found


def _merge(into: dict[str, frozenset[int]], more: dict[str, frozenset[int]]) -> bool:
    changed = False
    for name, places in more.items():
        known = into.get(name, frozenset())
        if not places <= known:
            into[name], changed = known | places, True
    return changed


def moves(instruction: Instruction) -> bool:
    """Whether an instruction moves bits without computing with them; a shuffle does."""
    parts = instruction.parts
    return parts[0] == "shfl" or (parts[0] in _MOVING and not FLOATS & set(parts))
