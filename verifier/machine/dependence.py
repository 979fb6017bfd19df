"""Which registers carry tags: all that come from memory by any operation and reach memory again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verifier.machine import demand
from verifier.machine.carry import Carry, layouts_of, sources, targets
from verifier.machine.syntax import BITS

if TYPE_CHECKING:
    from verifier.machine.flow import Program
    from verifier.machine.syntax import Instruction

_WRITES = frozenset({"st", "stmatrix", "atom", "red"})


def analyse(program: Program) -> Carry:
    """Forward from loads, backward from stores, through whatever computes on values or on bits."""
    instructions = list(program.instructions())
    carrying = _from_memory(instructions, program) & _to_memory(instructions)
    kinds = demand.kinds(instructions, program.registers)
    return Carry(layouts=layouts_of(instructions, carrying, program, kinds), kinds=kinds, broken=())


def _from_memory(instructions: list[Instruction], program: Program) -> set[str]:
    """Collect the registers, predicates apart, whose value may depend on memory."""
    found: set[str] = set()
    before = -1
    while len(found) != before:
        before = len(found)
        for instruction in instructions:
            parts = instruction.parts
            loaded = parts[0] in ("ldmatrix", "atom") or (parts[0] in ("ld", "ldu") and parts[1] != "param")
            if loaded or any(r in found for r in sources(instruction)):
                found |= {r for r in targets(instruction) if BITS[program.registers[r]] >= 16}
    return found


def _to_memory(instructions: list[Instruction]) -> set[str]:
    """Collect the registers on which something written may depend."""
    found: set[str] = set()
    before = -1
    while len(found) != before:
        before = len(found)
        for instruction in reversed(instructions):
            if instruction.parts[0] in _WRITES or any(r in found for r in targets(instruction)):
                found |= set(sources(instruction))
    return found
