"""Registers that only ever hold one literal: what is moved out of them is the literal itself.

Triton writes the zero of masked loads once, and moves it from there into every register that is loaded.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from verifier.machine.ptx.liveness import exposed
from verifier.machine.ptx.syntax import Immediate, Register

if TYPE_CHECKING:
    from verifier.machine.ptx.basic_blocks import Program
    from verifier.machine.ptx.syntax import Instruction


def spread(program: Program) -> Program:
    """Move the literals themselves."""
    known = literals(program)
    blocks = (
        replace(block, instructions=tuple(_moved(i, known) for i in block.instructions))
        for block in program.blocks
    )
    return replace(program, blocks=tuple(blocks))


def literals(program: Program) -> dict[str, tuple[str, Immediate]]:
    """Literals of the registers that are written once, before any reading, with the type of that move."""
    writes = Counter(name for i in program.instructions() for name in i.written)
    unsure = exposed(program)
    found = {}
    for instruction in program.instructions():
        match instruction.operands:
            case (Register(name=name), Immediate() as value) if (
                instruction.parts[0] == "mov" and instruction.guard is None
            ):
                if writes[name] == 1 and name not in unsure:
                    found[name] = (_pattern(instruction.parts[-1]), value)
    return found


def _moved(instruction: Instruction, known: dict[str, tuple[str, Immediate]]) -> Instruction:
    """Give a move of a literal for a move of a register that holds it."""
    match instruction.operands:
        case (Register() as target, Register(name=name, negated=False)) if name in known:
            kind, value = known[name]
            if instruction.parts[0] == "mov" and _pattern(instruction.parts[-1]) == kind:
                return replace(instruction, operands=(target, value))
    return instruction


def _pattern(kind: str) -> str:
    """Type of a move, one for all integers of a width: a literal has the same bits in each."""
    return f"b{kind[1:]}" if kind[0] in "bus" else kind
