"""As what float types the half-words of each register are read, following values through plain moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verifier.machine.operations.operation import FLOATS
from verifier.machine.operations.resolve import resolve
from verifier.machine.ptx.syntax import BITS, Instruction, Operand, Pair, Register, Vector

if TYPE_CHECKING:
    from collections.abc import Iterator

# Half-word and scalar type of each float in an operand.
PIECES: dict[str, tuple[tuple[int, str], ...]] = {
    "f16": ((0, "f16"),),
    "bf16": ((0, "bf16"),),
    "f32": ((0, "f32"),),
    "f64": ((0, "f64"),),
    "f16x2": ((0, "f16"), (1, "f16")),
    "bf16x2": ((0, "bf16"), (1, "bf16")),
    "f32x2": ((0, "f32"), (2, "f32")),
}
_HALVES = {"f16": 1, "bf16": 1, "f32": 2, "f64": 4}
_MOVES = ("mov", "selp", "shfl")
# What a register's half-words are read as; two answers for one half-word exclude each other.
Pieces = set[tuple[int, str]]


def kinds(instructions: list[Instruction], registers: dict[str, str]) -> dict[str, dict[int, str]]:
    """Give the floats of the registers that are read as floats, in one way and entirely."""
    pieces_read: dict[str, Pieces] = {name: set() for name in registers}
    for instruction in instructions:
        for name, piece in _read(instruction):
            pieces_read[name].add(piece)
    changed = True
    while changed:
        changed = False
        for instruction in reversed(instructions):
            for name, pieces in _passed_on(instruction, pieces_read):
                if not pieces <= pieces_read[name]:
                    pieces_read[name] |= pieces
                    changed = True
    return {
        name: dict(pieces)
        for name, pieces in pieces_read.items()
        if _whole(pieces, BITS[registers[name]] // 16)
    }


def _whole(pieces: Pieces, halves: int) -> bool:
    """Whether floats cover a register exactly once."""
    covered = [half + n for half, kind in pieces for n in range(_HALVES[kind])]
    return sorted(covered) == list(range(halves)) and halves > 0


def _read(instruction: Instruction) -> Iterator[tuple[str, tuple[int, str]]]:
    """Give the registers that an instruction reads as floats."""
    if instruction.parts[0] in (*_MOVES, "redux", "ld", "st", "atom", "red"):
        return
    operation = resolve(instruction.opcode)
    if operation is None or operation.results[0] not in FLOATS:
        return
    for operand, kind in zip(instruction.operands[1:], operation.sources, strict=False):
        if isinstance(operand, Register) and kind in FLOATS:
            for piece in PIECES[kind]:
                yield operand.name, piece


def _passed_on(instruction: Instruction, pieces_read: dict[str, Pieces]) -> Iterator[tuple[str, Pieces]]:
    """Hand the pieces on a target of a move on to its sources."""
    name = instruction.parts[0]
    if name not in _MOVES or instruction.parts[-1] == "pred":
        return
    target = instruction.operands[0]
    if isinstance(target, Pair):
        target = target.first
    origins = instruction.operands[1:3] if name == "selp" else instruction.operands[1:2]
    for origin in origins:
        if isinstance(origin, Vector):
            yield from _joined(target, origin, instruction, pieces_read)
        elif isinstance(target, Vector):
            yield from _split(target, origin, instruction, pieces_read)
        elif isinstance(origin, Register) and isinstance(target, Register):
            yield origin.name, pieces_read[target.name]


def _joined(
    target: Operand, origin: Vector, instruction: Instruction, pieces_read: dict[str, Pieces]
) -> Iterator[tuple[str, Pieces]]:
    """Cut the pieces on registers put together by `mov`."""
    each = BITS[instruction.parts[-1]] // len(origin.items) // 16
    if not isinstance(target, Register) or not each:
        return
    for number, item in enumerate(origin.items):
        if isinstance(item, Register):
            first = number * each
            yield (
                item.name,
                {(h - first, k) for h, k in pieces_read[target.name] if first <= h < first + each},
            )


def _split(
    target: Vector, origin: Operand, instruction: Instruction, pieces_read: dict[str, Pieces]
) -> Iterator[tuple[str, Pieces]]:
    """Join the pieces_read on the parts into which `mov` cuts a register."""
    each = BITS[instruction.parts[-1]] // len(target.items) // 16
    if not isinstance(origin, Register) or not each:
        return
    for number, item in enumerate(target.items):
        if isinstance(item, Register):
            yield origin.name, {(h + number * each, k) for h, k in pieces_read[item.name]}
