"""The guards of a program that are watched: masks of memory accesses, and branches that follow no data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verifier.machine.ptx.registers_used import definitions, uses
from verifier.machine.ptx.syntax import Immediate

if TYPE_CHECKING:
    from verifier.machine.ptx.basic_blocks import Block
    from verifier.machine.ptx.loops import Loop
    from verifier.machine.ptx.syntax import Instruction

ACCESSES = frozenset({"ld", "st", "atom", "red", "cp"})
_DATA = frozenset({"ld", "atom", "ldmatrix"})


@dataclass(frozen=True, kw_only=True)
class Guard:
    """A guarded instruction: the predicate's register, whether it is negated; kind: "mask" or "branch"."""

    instruction: Instruction
    register: str
    negated: bool
    kind: str


def guards_of(blocks: Sequence[Block], loops: Sequence[Loop]) -> dict[int, tuple[Guard, ...]]:
    """List the guards by block, of those whose predicate still stands when the block has run.

    Left out: predicates that are constants, by which compilers write "always"; the ends of loops, whose turns
    are counted; and branches that follow what was read from memory, which no shape decides.
    """
    constant, of_data = _constants(blocks), _of_data(blocks)
    ends = {number for loop in loops for number in loop.latches | loop.exits}
    found: dict[int, tuple[Guard, ...]] = {}
    for number, block in enumerate(blocks):
        here: list[Guard] = []
        for place, instruction in enumerate(block.instructions):
            guard, kind = instruction.guard, _kind(instruction)
            if guard is None or not kind or guard.name in constant:
                continue
            if kind == "branch" and (guard.name in of_data or number in ends):
                continue
            if any(guard.name in definitions(later) for later in block.instructions[place:]):
                continue
            here.append(Guard(instruction=instruction, register=guard.name, negated=guard.negated, kind=kind))
        if here:
            found[number] = tuple(here)
    return found


def _kind(instruction: Instruction) -> str:
    parts = instruction.parts
    if parts[0] == "bra":
        return "branch"
    return "mask" if parts[0] in ACCESSES and "param" not in parts else ""


def _constants(blocks: Sequence[Block]) -> set[str]:
    """Return registers that are nothing but one literal."""
    literal: set[str] = set()
    computed: set[str] = set()
    for block in blocks:
        for instruction in block.instructions:
            plain = (
                instruction.parts[0] == "mov"
                and instruction.guard is None
                and isinstance(instruction.operands[1], Immediate)
            )
            names = set(definitions(instruction))
            computed |= (names & literal) if plain else names
            literal |= names if plain else set()
    return literal - computed


def _of_data(blocks: Sequence[Block]) -> set[str]:
    """Return registers that are computed from what was read from memory, parameters left out."""
    moved = [
        (names, set(uses(one)))
        for block in blocks
        for one in block.instructions
        if (names := set(definitions(one)))
    ]
    found = {
        name
        for block in blocks
        for one in block.instructions
        if one.parts[0] in _DATA and "param" not in one.parts
        for name in definitions(one)
    }
    before = -1
    while len(found) != before:
        before = len(found)
        for names, read in moved:
            if read & found:
                found |= names
    return found
