"""The compilers' float32 logarithms, recognised in code that computes on the bits of its argument.

libdevice and CUDA's headers compile log(x) and log2(x) to integer operations that split x into a power of two
and a factor near 1, and a polynomial. Its instructions say nothing to shadows; the whole does. Only the shape
is recognised here: that the result really is the logarithm is tested on every value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.arithmetic.approximation import allowed_error
from verifier.machine.ptx.syntax import Immediate, Instruction, Operand, Register

if TYPE_CHECKING:
    from collections.abc import Iterable

    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.ptx.basic_blocks import Block, Program

_LN2 = 0x3F317218  # float32(ln 2), by which the last instruction multiplies the exponent
_STEP = 0x34000000  # 2^-23, by which the exponent's bits in place become a number
_EXPONENT = 0xFF800000  # mask of a float32's sign and exponent
BASES = {"log": math.log(2), "log2": 1.0}
"""The logarithm of 2 in the base of each function."""
_ROUNDINGS = (
    2.0**-48
)  # relative, of the test in float64: NumPy's log errs by less than 4 ulp, two more follow
_PARTS = frozenset({"fma.rn.f32", "mul.f32", "add.f32", "sub.f32", "add.s32", "sub.s32", "and.b32"})
_MOVES = frozenset({"mov.b32", "mov.f32", "mov.u32", "mov.s32"})


@dataclass(frozen=True, kw_only=True)
class Logarithm:
    """A slice of code that computes log(argument) + shift * log(2), at its last instruction.

    name: "log" or "log2"; "tanhf" is the hyperbolic tangent of the argument, without a shift. shift: what was
    taken from the exponent of a subnormal argument before (-23), else 0. inner: the numbers (`id`) of the
    slice's other instructions, whose results nothing else reads.
    """

    name: str
    last: Instruction
    argument: Register
    shift: Operand
    inner: frozenset[int]


def find(program: Program) -> dict[int, Logarithm]:
    """Give the logarithms of a program by the `id` of their last instruction."""
    reader = Reader(program)
    found = (reader.logarithm(i, block) for block in program.blocks for i in block.instructions)
    return {id(one.last): one for one in found if one is not None}


class Reader:
    """Looks up what defines and what reads a register."""

    def __init__(self, program: Program) -> None:
        self.defined: dict[str, list[Instruction]] = {}
        self.read: dict[str, list[Instruction]] = {}
        for instruction in program.instructions():
            for name in instruction.written:
                self.defined.setdefault(name, []).append(instruction)
            for name in instruction.read:
                self.read.setdefault(name, []).append(instruction)

    def definition(self, operand: Operand) -> Instruction | None:
        """Give the only instruction that defines a register, and always does."""
        found = self.defined.get(operand.name, []) if isinstance(operand, Register) else []
        return found[0] if len(found) == 1 and found[0].guard is None else None

    def source(self, operand: Operand) -> Operand:
        """Follow plain moves back to a literal or to another register."""
        made = self.definition(operand)
        while (
            made is not None and made.opcode in _MOVES and isinstance(made.operands[1], Register | Immediate)
        ):
            operand = made.operands[1]
            made = self.definition(operand)
        return operand

    def literal(self, operand: Operand) -> int | None:
        """Bits of a literal, also by way of a register."""
        found = self.source(operand)
        return found.value & 0xFFFFFFFF if isinstance(found, Immediate) and found.kind != "f64" else None

    def made_by(self, operand: Operand, *opcodes: str) -> tuple[Operand, ...]:
        """Operands of the instruction that defines a value, if it is one of these; else nothing."""
        made = self.definition(self.source(operand))
        return made.operands[1:] if made is not None and plain(made) in opcodes else ()

    def logarithm(self, last: Instruction, block: Block) -> Logarithm | None:
        """Recognise the slice that ends in an instruction: power * ln(2) + polynomial, or their sum."""
        opcode, operands = plain(last), last.operands[1:]
        if last.guard is not None or opcode not in ("fma.rn.f32", "add.f32"):
            return None
        if opcode == "fma.rn.f32":
            ways = [("log", operands[0], operands[2])] if self.literal(operands[1]) == _LN2 else []
        else:
            ways = [("log2", operands[0], operands[1]), ("log2", operands[1], operands[0])]
        found = (self.way(last, block, *way) for way in ways)
        return next((one for one in found if one is not None), None)

    def way(
        self, last: Instruction, block: Block, name: str, power: Operand, polynomial: Operand
    ) -> Logarithm | None:
        """Recognise the slice of an exponent and a polynomial."""
        argument, shift = self.exponent(power)
        if not isinstance(argument, Register) or self.definition(argument) is None:
            return None
        if not isinstance(shift, Immediate) and self.definition(shift) is None:
            return None
        leaves = {o.name for o in (argument, shift) if isinstance(o, Register)}
        inner = self.slice((power, polynomial), leaves)
        if inner is None or not self.closed([*inner, last]):
            return None
        here = {id(i) for i in block.instructions}
        if not all(id(i) in here for i in inner):
            return None
        numbers = frozenset(id(i) for i in inner)
        return Logarithm(name=name, last=last, argument=argument, shift=shift, inner=numbers)

    def exponent(self, power: Operand) -> tuple[Operand | None, Operand]:
        """Give x and i of the exponent of x, as a float and increased by i."""
        zero = Immediate(0, "f32")
        by_sum, by_product = self.made_by(power, "fma.rn.f32"), self.made_by(power, "mul.f32")
        whole, step, shift = by_sum or (*by_product, zero) if by_sum or by_product else (zero, zero, zero)
        if self.literal(step) != _STEP:
            return None, zero
        masked = next(iter(self.made_by(whole, "cvt.rn.f32.s32")), zero)
        moved, mask = self.made_by(masked, "and.b32") or (zero, zero)
        if self.literal(mask) != _EXPONENT:
            return None, zero
        bits, away = self.made_by(moved, "add.s32") or (zero, zero)
        return (None if self.literal(away) is None else self.source(bits)), shift

    def slice(
        self, ends: tuple[Operand, ...], leaves: set[str], parts: frozenset[str] = _PARTS
    ) -> list[Instruction] | None:
        """Collect what is computed between the leaves and the ends; None if anything else takes part."""
        found: dict[int, Instruction] = {}
        waiting = list(ends)
        while waiting:
            operand = waiting.pop()
            origin = self.source(operand)
            if isinstance(origin, Immediate) or (isinstance(origin, Register) and origin.name in leaves):
                continue
            made = self.definition(operand)
            if made is None or not (plain(made) in parts or made.opcode in (*_MOVES, "cvt.rn.f32.s32")):
                return None
            if id(made) not in found:
                found[id(made)] = made
                waiting += made.operands[1:]
        return list(found.values())

    def closed(self, slice_: list[Instruction]) -> bool:
        """Whether nothing outside reads what the slice computes before its last instruction."""
        inside = {id(i) for i in slice_}
        names = (name for i in slice_[:-1] for name in i.written)
        return all(id(reader) in inside for name in names for reader in self.read.get(name, []))


def plain(instruction: Instruction) -> str:
    """Opcode without `.ftz`, which changes nothing where no number is subnormal."""
    return instruction.opcode.replace(".ftz", "").replace("mul.rn.", "mul.").replace("add.rn.", "add.")


def inner(found: Iterable[Logarithm]) -> frozenset[int]:
    """Numbers of all instructions inside logarithms."""
    return frozenset().union(*(one.inner for one in found))


def outside(one: Logarithm) -> Instruction:
    """Give an instruction that stands for the whole: it reads the arguments, and writes the result."""
    target = one.last.operands[0]
    return replace(one.last, opcode="add.f32", operands=(target, one.argument, one.shift))


def defined(name: str, argument: Array) -> Array:
    """Where an argument has a value; where it has no logarithm the code goes on to choose another result."""
    return np.isfinite(argument) if name == "tanhf" else (argument > 0) & (argument < np.inf)


def strays(name: str, result: Array, argument: Array, shift: Array) -> Array:
    """Where a result is further from the function than the compilers' code for it errs.

    Source: CUDA C++ Programming Guide, mathematical functions: logf and log2f err by 1 ulp, tanhf by 2 ulp.
    """
    with np.errstate(all="ignore"):
        wide = argument.astype(np.float64)
        if name == "tanhf":
            parts = np.tanh(wide), np.zeros(())
        else:
            parts = (np.log if name == "log" else np.log2)(wide), shift.astype(np.float64) * BASES[name]
        exact = parts[0] + parts[1]
        allowed = allowed_error(name, exact) + _ROUNDINGS * (np.abs(parts[0]) + np.abs(parts[1]))
        near = np.abs(result.astype(np.float64) - exact) <= allowed
    return defined(name, argument) & ~near
