"""Which registers have sets of sources: all that come from memory by any operation and reach memory again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verifier.machine.ptx.syntax import BITS
from verifier.machine.translate import types_read
from verifier.machine.translate.slot_layouts import ShadowedRegisters, layouts_of, sources, targets

if TYPE_CHECKING:
    from verifier.machine.ptx.basic_blocks import Program
    from verifier.machine.ptx.syntax import Instruction

_WRITES = frozenset({"st", "stmatrix", "atom", "red"})


def analyse(program: Program) -> ShadowedRegisters:
    """Forward from loads, backward from stores, through whatever computes on values or on bits."""
    instructions = list(program.instructions())
    shadowed = _from_memory(instructions, program) & _to_memory(instructions)
    kinds = types_read.kinds(instructions, program.registers)
    return ShadowedRegisters(
        layouts=layouts_of(instructions, shadowed, program, kinds), kinds=kinds, broken=()
    )


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
