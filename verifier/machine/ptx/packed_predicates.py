"""Predicates that a compiler packs into an integer, a bit each, and asks for one by one later on.

LLVM keeps the predicates of many lanes so: `selp.b16 w, 1, 0, p`, shifts and ors, and later a question for a
bit, `setp.ne.b32 q, w & 1, 0`. Here q is p itself, so that what follows values needs to follow no bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from verifier.machine.ptx.syntax import BITS, Immediate, Instruction, Operand, Register

if TYPE_CHECKING:
    from verifier.machine.ptx.basic_blocks import Program

Bit = bool | tuple[str, bool] | None
"""A known bit; a predicate, and whether it is negated; None where nothing is known."""
Bits = tuple[Bit, ...]
"""The bits of a register, the lowest first."""
_WORDS = (16, 32, 64)


def asked_directly(program: Program) -> Program:
    """Ask for the predicates themselves, where they were packed in the same block."""
    if not any(i.parts[0] == "selp" and BITS.get(i.parts[-1]) in _WORDS for i in program.instructions()):
        return program
    blocks = (
        replace(block, instructions=tuple(_Packed(program.registers).through(block.instructions)))
        for block in program.blocks
    )
    return replace(program, blocks=tuple(blocks))


@dataclass
class _Packed:
    """What is known of the bits of registers, along a block."""

    registers: dict[str, str]
    held: dict[str, Bits] = field(default_factory=dict)

    def through(self, instructions: tuple[Instruction, ...]) -> list[Instruction]:
        """Return the instructions, with predicates in the place of questions for packed ones."""
        found = []
        for one in instructions:
            found.append(self._asked(one))
            bits = self._of(one) if one.guard is None and len(one.written) == 1 else None
            for name in one.written:
                self._forget(name)
            if bits is not None and any(bit is not None for bit in bits):
                self.held[one.written[0]] = bits
        return found

    def _forget(self, name: str) -> None:
        """Let nothing be known of a register that is written, nor be said by a predicate that is."""
        self.held.pop(name, None)
        if self.registers.get(name) == "pred":
            said = (name, False), (name, True)
            for other, bits in self.held.items():
                if any(bit in said for bit in bits):
                    self.held[other] = tuple(None if bit in said else bit for bit in bits)

    def _asked(self, one: Instruction) -> Instruction:
        """Return a question for one bit as a move of its predicate."""
        if one.parts[0] != "setp" or len(one.parts) != 3 or len(one.operands) != 3:
            return one
        target, word, zero = one.operands
        comparison, kind = one.parts[1:]
        if comparison not in {"eq", "ne"} or kind[0] not in "bus" or BITS[kind] not in _WORDS:
            return one
        if not isinstance(target, Register) or not isinstance(word, Register) or _number(zero) != 0:
            return one
        bits = self.held.get(word.name)
        if bits is None or len(bits) != BITS[kind]:
            return one
        others = [bit for bit in bits if bit is not False]
        if len(others) != 1 or not isinstance(others[0], tuple):
            return one
        name, negated = others[0]
        opcode = "mov.pred" if negated == (comparison == "eq") else "not.pred"
        return replace(one, opcode=opcode, operands=(target, Register(name)))

    def _of(self, one: Instruction) -> Bits | None:
        """Return the bits of what an instruction writes, None where nothing is known."""
        family, kind = one.parts[0], one.parts[-1]
        target, *read = one.operands
        if not isinstance(target, Register) or kind[0] not in "bus" or BITS.get(kind) not in _WORDS:
            return None
        width = BITS[kind]
        if BITS[self.registers[target.name]] != width and family != "cvt":
            return None
        match family, read:
            case "selp", [first, second, Register(negated=negated, name=name)]:
                then, otherwise = _constant(first, width), _constant(second, width)
                if then is None or otherwise is None:
                    return None
                sides = zip(then, otherwise, strict=True)
                return tuple(a if a == b else (name, negated ^ (not a)) for a, b in sides)
            case "shl" | "shr", [Register() as word, amount]:
                return self._shifted(one, word, _number(amount), width)
            case "mov", [Register() as word]:
                return self._word(word, width)
            case "cvt", [Register() as word] if len(one.parts) == 3 and kind[0] in "bu":
                bits = self._word(word, BITS[kind])
                narrow = BITS[one.parts[1]]
                return None if bits is None else (*bits, *([False] * narrow))[:narrow]
            case (("and" | "or" | "xor"), [first, second]):
                a, b = self._word(first, width), self._word(second, width)
                if a is None or b is None:
                    return None
                return tuple(_joined(family, x, y) for x, y in zip(a, b, strict=True))
        return None

    def _word(self, operand: Operand, width: int) -> Bits | None:
        if isinstance(operand, Register):
            bits = self.held.get(operand.name)
            known = bits is not None and len(bits) == width and not operand.negated
            return bits if known else (None,) * width
        return _constant(operand, width)

    def _shifted(self, one: Instruction, word: Register, amount: int | None, width: int) -> Bits | None:
        bits = self._word(word, width)
        if amount is None or bits is None or not 0 <= amount <= width:
            return None
        if one.parts[0] == "shl":
            return (*([False] * amount), *bits)[:width]
        filled: Bit = bits[-1] if one.parts[-1][0] == "s" else False
        return (*bits[amount:], *([filled] * amount))


def _number(operand: Operand) -> int | None:
    """Return an integer literal."""
    return operand.value if isinstance(operand, Immediate) and operand.kind == "integer" else None


def _constant(operand: Operand, width: int) -> Bits | None:
    number = _number(operand)
    return None if number is None else tuple(bool(number >> place & 1) for place in range(width))


def _joined(family: str, a: Bit, b: Bit) -> Bit:
    """Return a bit of `and`, `or` or `xor`."""
    for one, other in ((a, b), (b, a)):
        if isinstance(one, bool):
            if family == "and":
                return other if one else False
            if family == "or":
                return True if one else other
            if isinstance(other, bool):
                return one ^ other
            return None if other is None else (other[0], other[1] ^ one)
    if a is None or b is None or family == "xor":
        return None
    return a if a == b else None
