"""Emission of the lines that follow taint: the sources on which a value depends, whatever computes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verifier.machine.execute import collectives
from verifier.machine.operations.operation import FLOATS
from verifier.machine.ptx.syntax import BITS, Immediate, Instruction, Operand, Pair, Register, Vector
from verifier.machine.translate import slot_layouts
from verifier.machine.translate.emit_slots import SlotEmitter
from verifier.machine.translate.slot_layouts import LAYOUTS
from verifier.machine.translate.slot_operands import NONE, SCALAR, Half
from verifier.machine.translate.uniformity import PER_THREAD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verifier.machine.operations.operation import Operation
    from verifier.machine.translate.expressions import Writer

_BITWISE = frozenset({"and", "or", "xor", "not", "lop3", "cnot"})
_SELECTED = frozenset({"min", "max"})


class TaintEmitter(SlotEmitter):
    """Writes the lines of one program: half-words keep their sources apart wherever an operation does.

    A float that is wider than a half-word has one set of sources, as each of its half-words.
    """

    # Sources of operands, as expressions.

    def half(self, writer: Writer, operand: Operand, half: int) -> Half:
        """Give the sources of one half-word of an operand, and the mark that they count."""
        if not isinstance(operand, Register) or not self.shadowed.has(operand.name):
            return NONE
        layout = self.shadowed.layouts[operand.name]
        if not layout:
            inside = half * 16 < writer.code.width(operand.name)
            return (self.slot(writer, operand.name, half), "1") if inside else NONE
        for start, width in layout:
            if start <= half < start + width // 16:
                return self.slot(writer, operand.name, start), "1"
        return NONE

    def span(self, writer: Writer, operand: Operand, start: int, count: int) -> list[str]:
        """Give the sources of `count` half-words of an operand."""
        return [self.half(writer, operand, half)[0] for half in range(start, start + count)]

    def whole(self, writer: Writer, operand: Operand, kind: str) -> list[str]:
        """Give the sources of all of an operand that is read as this type."""
        return self.span(writer, operand, 0, max(BITS[kind] // 16, 1))

    def read(self, writer: Writer, operand: Operand, kind: str, piece: int) -> str:
        """Expression of the sources of one float of an operand."""
        half, width = LAYOUTS[kind][piece]
        return united(self.span(writer, operand, half, width // 16))

    def parts(self, target: Register) -> list[tuple[int, int]]:
        """(first half-word, count) of what has sources of its own in a target."""
        layout = self.shadowed.layouts[target.name]
        known = [(start, width // 16) for start, width in layout]
        return known or [(n, 1) for n in range(BITS[self.program.registers[target.name]] // 16)]

    def put(self, writer: Writer, target: Register, half: int, source: Half, guard: str | None) -> None:
        """Write the sources of one half-word."""
        self.write(writer, target.name, half, source[0], guard)

    def put_all(self, writer: Writer, target: Register, found: list[str], guard: str | None) -> None:
        """Write the sources of a target, given by half-word; all are computed before any is written."""
        wanted = [(start, united(found[start : start + count])) for start, count in self.parts(target)]
        own = {self.slot(writer, target.name, start) for start, _ in wanted}
        held = {NONE[0]: NONE[0]}
        for _, value in wanted:
            if value not in held:
                held[value] = f"z{len(held)}"
                writer.add(f"{held[value]} = {value}{'.copy()' if value in own else ''}")
        for start, value in wanted:
            self.write(writer, target.name, start, held[value], guard)

    # Instructions.

    def arithmetic(
        self,
        writer: Writer,
        instruction: Instruction,
        operation: Operation,
        target: Register,
        piece: int,
        *,
        guard: str | None,
    ) -> None:
        """Write all floats of a result with the first; what lies above them depends on nothing."""
        if piece:
            return
        kind = operation.results[0]
        found = [NONE[0]] * (BITS[self.program.registers[target.name]] // 16)
        for number, (half, width) in enumerate(LAYOUTS[kind]):
            result = f"slots.piece(v0, {number}, {SCALAR[kind]!r})" if kind in SCALAR else "v0"
            value = self.value(writer, instruction, operation, number, result)
            found[half : half + width // 16] = [value] * (width // 16)
        self.put_all(writer, target, found, guard)

    def value(
        self, writer: Writer, instruction: Instruction, operation: Operation, piece: int, result: str
    ) -> str:
        """Expression of a float result's sources: of the chosen operand, or of all."""
        if operation.name in _SELECTED:
            return super().value(writer, instruction, operation, piece, result)
        return united(self.operands_of(writer, instruction, operation, piece))

    def operands_of(
        self, writer: Writer, instruction: Instruction, operation: Operation, piece: int
    ) -> list[str]:
        """Give the sources of all that one float of a result is computed from."""
        operands = list(zip(instruction.operands[1:], operation.sources, strict=False))
        if operation.name == "cvt" and len(operands) == 2:
            operands = [operands[1 - piece]]
        found: list[str] = []
        for operand, kind in operands:
            packed = kind in SCALAR
            found += (
                [self.read(writer, operand, kind, piece)] if packed else self.whole(writer, operand, kind)
            )
        return found

    def integer(self, writer: Writer, instruction: Instruction, target: Register, guard: str | None) -> None:
        """Write the sources of any result that is no float."""
        count = BITS[self.program.registers[target.name]] // 16
        self.put_all(writer, target, self.of_bits(writer, instruction, count), guard)

    def of_bits(self, writer: Writer, instruction: Instruction, count: int) -> list[str]:
        """Give the sources of each half-word of an integer result: those of the half-words it is made of."""
        name, parts, operands = instruction.parts[0], instruction.parts, instruction.operands
        if name in _BITWISE:
            return [united(self.logic(writer, instruction, half)) for half in range(count)]
        if name in ("shl", "shr") and isinstance(operands[2], Immediate) and parts[-1][0] != "s":
            return list(self.shifted(writer, instruction, count))
        if name == "cvt" and parts[-1][0] in "us" and parts[-2][0] in "us" and "sat" not in parts:
            moved = self.span(writer, operands[1], 0, max(min(BITS[p] for p in parts[-2:]) // 16, 1))
            sign = moved[-1] if parts[-1][0] == "s" else NONE[0]
            return (moved + [sign] * count)[:count]
        if name == "prmt" and len(operands) == 4 and isinstance(operands[3], Immediate):
            return list(self.permuted(writer, instruction, operands[3].value))
        every = [self.of_register(writer, o) for o in operands[1:] if isinstance(o, Register)]
        return [united(every)] * count

    def of_register(self, writer: Writer, operand: Register) -> str:
        """Give the sources of everything in a register."""
        return united(self.span(writer, operand, 0, writer.code.width(operand.name) // 16))

    def logic(self, writer: Writer, instruction: Instruction, half: int) -> list[str]:
        """Give the sources of a half-word of a logic operation; one that a literal clears has none."""
        operands = instruction.operands[1:]
        masks = [o.value for o in operands if isinstance(o, Immediate) and instruction.parts[0] == "and"]
        if any(mask >> 16 * half & 0xFFFF == 0 for mask in masks):
            return []
        return [self.half(writer, operand, half)[0] for operand in operands]

    def shifted(self, writer: Writer, instruction: Instruction, count: int) -> Iterator[str]:
        """Give the sources of each half-word after a shift by a literal: of the two whose bits it has."""
        origin, distance = instruction.operands[1], instruction.operands[2]
        assert isinstance(distance, Immediate)
        width = BITS[instruction.parts[-1]] // 16
        away = min(distance.value, 16 * width)
        for half in range(count):
            low = 16 * half + (-away if instruction.parts[0] == "shl" else away)
            reached = [n for n in (low // 16, -(-low // 16)) if 0 <= n < width and half < width]
            yield united([self.half(writer, origin, n)[0] for n in reached])

    def permuted(self, writer: Writer, instruction: Instruction, selector: int) -> Iterator[str]:
        """Give the sources of each half-word after `prmt`: of those in which its two bytes were."""
        for half in range(2):
            octets = [selector >> 8 * half + 4 * n & 7 for n in range(2)]
            yield united([self.half(writer, instruction.operands[1 + o // 4], o % 4 // 2)[0] for o in octets])

    def select(self, writer: Writer, instruction: Instruction, target: Register, guard: str | None) -> None:
        """`selp`: the sources of the side that was chosen."""
        first, second, predicate = instruction.operands[1:]
        condition = writer.source(predicate, "pred")
        found = []
        for half in range(BITS[self.program.registers[target.name]] // 16):
            sides = [self.half(writer, side, half)[0] for side in (first, second)]
            alike = sides[0] == sides[1]
            found.append(sides[0] if alike else f"where({condition}, {sides[0]}, {sides[1]})")
        self.put_all(writer, target, found, guard)

    def move(self, writer: Writer, instruction: Instruction, kind: str) -> None:
        """Follow values through memory, packing, shuffles and reductions."""
        if kind in ("pack", "load", "store", "shfl", "redux", "atomic", "atomic result"):
            super().move(writer, instruction, kind)
            return
        # What remains (votes, matches, arguments, addresses) depends on predicates or on no tensor.
        for register in slot_layouts.targets(instruction):
            if self.shadowed.has(register):
                for start, _ in self.parts(Register(register)):
                    self.write(writer, register, start, NONE[0], None)

    def load(self, writer: Writer, instruction: Instruction) -> None:
        """`ld`: sources come from memory with the values."""
        target = instruction.operands[0]
        items = target.items if isinstance(target, Vector) else (target,)
        if not any(isinstance(i, Register) and self.shadowed.has(i.name) for i in items):
            return
        width = BITS[instruction.parts[-1]] // 8
        guard = writer.guard(instruction)
        writer.add(f"ms = slots.load(wave.found, m[0].shape, {width}, {len(items)})")
        for number, item in enumerate(items):
            if isinstance(item, Register) and self.shadowed.has(item.name):
                halves = [f"ms[{number}][{half}][0]" for half in range(max(width // 2, 1))]
                halves += [NONE[0]] * (writer.code.width(item.name) // 16 - len(halves))
                self.put_all(writer, item, halves, guard)

    def row(self, writer: Writer, item: Operand, width: int) -> str:
        """Give (sources, mark) of each half-word of a stored element."""
        halves = [self.half(writer, item, n) for n in range(max(width // 2, 1))]
        return "[" + ", ".join(f"({s}, {t})" for s, t in halves) + "]"

    def shuffle(self, writer: Writer, instruction: Instruction) -> None:
        """`shfl`: sources move as their values do."""
        target, origin, distance, control = instruction.operands[:4]
        if isinstance(target, Pair):
            target = target.first
        if not isinstance(target, Register) or not self.shadowed.has(target.name):
            return
        apart = not isinstance(origin, Register) or bool(self.shapes.of(origin.name) & PER_THREAD)
        mode = instruction.parts[2] if instruction.parts[1] == "sync" else instruction.parts[1]
        function = writer.code.constant(collectives.shuffle)
        where = f"{writer.source(distance, 'b32')}, {writer.source(control, 'b32')}"
        found = []
        for sources in self.span(writer, origin, 0, 2):
            moves = apart and sources != NONE[0]
            found.append(f"{function}({writer.group}, {mode!r}, {sources}, {where})[0]" if moves else sources)
        self.put_all(writer, target, found, None)

    def reduce(self, writer: Writer, instruction: Instruction) -> None:
        """`redux.sync`: of a float the sources of the lane that holds the extremum, else of all members."""
        target, origin, members = instruction.operands[:3]
        if not isinstance(target, Register) or not self.shadowed.has(target.name):
            return
        there = writer.source(members, "u32")
        shadows = united(self.whole(writer, origin, "b32"))
        if shadows == NONE[0]:
            value = shadows
        elif instruction.parts[-1] in FLOATS and "abs" not in instruction.parts:
            function = writer.code.constant(collectives.extremal_lane)
            value = f"{function}({writer.group}, v0, {writer.source(origin, 'f32')}, {shadows}, {there})"
        else:
            function = writer.code.constant(collectives.reduce_warp)
            value = f"{function}({writer.group}, 'or', {shadows}, {there})"
        writer.add(f"z = {value}")
        self.put_all(writer, target, ["z", "z"], None)

    def atomic(self, writer: Writer, instruction: Instruction) -> None:
        """Before `atom` and `red`: give the machine the sources of the operands."""
        value = instruction.operands[-1]
        items = value.items if isinstance(value, Vector) else (value,)
        kind = instruction.parts[-1]
        rows = ", ".join(united(self.whole(writer, item, kind)) for item in items)
        writer.add(f"wave.operand_shadows = [{rows}]")

    def atomic_result(self, writer: Writer, instruction: Instruction) -> None:
        """After `atom`: the sources of the old values."""
        target = instruction.operands[0]
        for number, item in enumerate(target.items if isinstance(target, Vector) else (target,)):
            if isinstance(item, Register) and self.shadowed.has(item.name):
                halves = writer.code.width(item.name) // 16
                found = [f"wave.old_shadows[{number}][0]"] * halves
                self.put_all(writer, item, found, writer.guard(instruction))


def united(sources: list[str]) -> str:
    """Expression of all of several sets of sources."""
    return " | ".join(dict.fromkeys(t for t in sources if t != NONE[0])) or NONE[0]
