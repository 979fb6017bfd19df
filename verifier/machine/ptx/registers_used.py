"""Which registers an instruction writes and reads."""

from __future__ import annotations

from verifier.machine.ptx.syntax import Address, Instruction, Operand, Pair, Register, Vector

CARRY = "%cc"
"""The condition-code register, by the name that blocks give it."""


def definitions(instruction: Instruction) -> list[str]:
    """List the registers that an instruction writes."""
    parts = instruction.parts
    name = parts[0]
    written: list[str] = []
    if name in (
        "st",
        "red",
        "bra",
        "ret",
        "exit",
        "call",
        "membar",
        "fence",
        "stmatrix",
        "trap",
        "cp",
        "nanosleep",
    ):
        return written
    if name in ("bar", "barrier") and "red" not in parts:
        return written
    # A first operand in memory is written there: `mbarrier.init [a], n`.
    if instruction.operands and not isinstance(instruction.operands[0], Address):
        written = registers_of(instruction.operands[0])
    if "cc" in parts:
        written.append(CARRY)
    return written


def uses(instruction: Instruction) -> list[str]:
    """List the registers that an instruction reads, its guard included."""
    name = instruction.parts[0]
    defines = bool(definitions(instruction))
    read = [] if instruction.guard is None else [instruction.guard.name]
    for operand in instruction.operands[1 if defines else 0 :]:
        read += registers_of(operand)
    if name in ("addc", "subc", "madc"):
        read.append(CARRY)
    return read


def registers_of(operand: Operand) -> list[str]:
    """Names of the registers in an operand."""
    if isinstance(operand, Register):
        return [operand.name]
    if isinstance(operand, Vector):
        return [name for item in operand.items for name in registers_of(item)]
    if isinstance(operand, Pair):
        return registers_of(operand.first) + registers_of(operand.second)
    if isinstance(operand, Address):
        return registers_of(operand.base)
    return []
