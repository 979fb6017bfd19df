"""Which registers may hold floats that were computed, and which instructions read the bits of these.

Of a NaN that is computed the bits are a device's own: its sign and payload are left open. Where a double is
split into words, no word tells by itself whether it is part of one: so the bits are read there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from verifier.machine.operations.resolve import resolve
from verifier.machine.ptx.syntax import Vector, registers_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verifier.machine.ptx.basic_blocks import Program
    from verifier.machine.ptx.syntax import Instruction

_MOVES = frozenset({"mov", "selp", "shfl"})
_FLOATS = {"f16": "f16", "f16x2": "f16", "bf16": "bf16", "bf16x2": "bf16"}
_FLOATS |= {"f32": "f32", "f32x2": "f32", "f64": "f64"}


def computed_floats(program: Program) -> dict[str, str]:
    """Return the registers that hold floats which were computed, perhaps moved, and their format."""
    found: dict[str, str] = {}
    before = -1
    while before != len(found):
        before = len(found)
        for one in program.instructions():
            for name in one.written:
                if kind := _kind(one, found):
                    found.setdefault(name, kind)
    return found


def _kind(instruction: Instruction, known: dict[str, str]) -> str:
    if _splits(instruction, known):
        return ""
    if instruction.parts[0] in _MOVES:
        return next((known[name] for name in instruction.read if name in known), "")
    operation = resolve(instruction.opcode)
    return "" if operation is None else _FLOATS.get(operation.results[0], "")


def read_as_bits(instruction: Instruction, floats: dict[str, str]) -> Iterator[str]:
    """Yield the registers of computed floats that an instruction takes for integers, and does not move."""
    if _splits(instruction, floats):
        yield from (name for name in instruction.read if name in floats)
    operation = None if instruction.parts[0] in _MOVES else resolve(instruction.opcode)
    if operation is None:
        return
    for operand, kind in zip(instruction.operands[1:], operation.sources, strict=False):
        if kind not in _FLOATS and kind != "pred":
            yield from (name for name in registers_of(operand) if name in floats)


def _splits(instruction: Instruction, floats: dict[str, str]) -> bool:
    """Whether an instruction moves a computed double into words."""
    into_words = instruction.parts[0] == "mov" and isinstance(instruction.operands[0], Vector)
    return into_words and any(floats.get(name) == "f64" for name in instruction.read)
