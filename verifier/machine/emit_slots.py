"""Emission of the lines that carry slots beside the registers."""

# ruff: noqa: PLR0917 - these are called by position, many times a launch

from __future__ import annotations

from typing import TYPE_CHECKING

from verifier.machine import carry as carrying
from verifier.machine import collectives
from verifier.machine.carry import LAYOUTS
from verifier.machine.operations.table import FLOATS
from verifier.machine.slot_operands import NONE, SCALAR, Half, SlotOperands
from verifier.machine.slots import MODIFIERS, PAIRS, tag
from verifier.machine.syntax import BITS, Immediate, Instruction, Operand, Pair, Register, Vector
from verifier.machine.uniformity import FULL, PER_THREAD

if TYPE_CHECKING:
    from verifier.machine.logarithm import Logarithm
    from verifier.machine.operations import Operation
    from verifier.machine.writer import Writer

# Selectors of `prmt` that move whole half-words: nibble pairs 10, 32, 54, 76.
_HALF_OF_NIBBLES = {0x10: 0, 0x32: 1, 0x54: 2, 0x76: 3}


FLOAT_BITS = "v0.view('f4')"
"""A result that was chosen as bits, as the float32 that it is."""


class SlotShadow(SlotOperands):
    """Writes slot lines for one program."""

    def pure(self, writer: Writer, instruction: Instruction, operation: Operation) -> None:
        """Write the slots of an operation whose result is in v0."""
        target, kind = instruction.operands[0], operation.results[0]
        if not isinstance(target, Register) or not self.carry.has(target.name):
            return
        guard = writer.guard(instruction)
        found = self.carry.logarithms.get(id(instruction))
        if found is not None and operation.name in ("selp", "or"):
            writer.add(f"z = {self.logarithm(writer, found, FLOAT_BITS)}")
            self.computed(writer, target, "f32", 0, FLOAT_BITS, guard)
        elif operation.name == "selp":
            self.select(writer, instruction, target, guard)
        elif operation.name == "mov":
            self.copy(writer, target, instruction.operands[1], guard)
        elif kind in FLOATS:
            for piece in range(len(LAYOUTS[kind])):
                self.arithmetic(writer, instruction, operation, target, piece, guard)
        else:
            self.integer(writer, instruction, target, guard)

    def arithmetic(
        self,
        writer: Writer,
        instruction: Instruction,
        operation: Operation,
        target: Register,
        piece: int,
        guard: str | None,
    ) -> None:
        """Write one float result."""
        kind = operation.results[0]
        scalar = SCALAR.get(kind, kind)
        result = f"slots.piece(v0, {piece}, {scalar!r})" if kind in SCALAR else "v0"
        writer.add(f"z = {self.value(writer, instruction, operation, piece, result)}")
        self.computed(writer, target, kind, piece, result, guard)

    def computed(
        self, writer: Writer, target: Register, kind: str, piece: int, result: str, guard: str | None
    ) -> None:
        """Write the slot in `z` of one float of a result, with its tag where the target keeps tags."""
        half, width = LAYOUTS[kind][piece]
        self.write(writer, target.name, half, "z", guard)
        if self.carry.layouts[target.name]:
            return
        bits = f"{result}.view('u{width // 8}')"
        self.write(
            writer, target.name, half, f"{writer.code.constant(tag)}({bits}, {width})", guard, tags=True
        )
        for other in range(writer.code.width(target.name) // 16):
            if all(other != start for start, _ in LAYOUTS[kind]):
                self.write(writer, target.name, other, "0", guard, tags=True)

    def value(
        self, writer: Writer, instruction: Instruction, operation: Operation, piece: int, result: str
    ) -> str:
        """Expression of a result's slot."""
        if (found := self.carry.logarithms.get(id(instruction))) is not None:
            return self.logarithm(writer, found, result)
        kind = operation.results[0]
        scalar = SCALAR.get(kind, kind)
        operands = list(zip(instruction.operands[1:], operation.sources, strict=False))
        if operation.name == "cvt" and kind in SCALAR and len(operands) == 2:
            operands = [operands[1 - piece]]
        elif operation.name == "cvt" and operation.sources[0] not in FLOATS:
            if operation.sources[0] in ("e4m3x2", "e5m2x2"):
                return f"slots.lift({result}, {scalar!r})"
            return f"slots.from_integer({writer.source(operands[0][0], operation.sources[0])})"
        floats = [(o, k) for o, k in operands if k in FLOATS]
        if not floats:
            return f"slots.lift({result}, {scalar!r})"
        index = [piece if k in SCALAR else 0 for _, k in floats]
        kinds = ", ".join(repr(SCALAR.get(k, k)) for _, k in floats)
        values = ", ".join(self.float_piece(writer, o, k, n) for (o, k), n in zip(floats, index, strict=True))
        slots = ", ".join(self.read(writer, o, k, n) for (o, k), n in zip(floats, index, strict=True))
        name = ".".join((operation.name, *(p for p in instruction.parts if p in MODIFIERS)))
        return f"slots.apply({name!r}, {scalar!r}, {result}, ({kinds},), ({values},), ({slots},))"

    def logarithm(self, writer: Writer, found: Logarithm, result: str) -> str:
        """Expression of the slot of a logarithm, whose own instructions have none."""
        operands = (found.argument, found.shift)
        values = ", ".join(writer.source(o, "f32") for o in operands)
        slots = ", ".join(self.read(writer, o, "f32", 0) for o in operands)
        return f"slots.logarithm({found.name!r}, {result}, ({values}), ({slots}), {writer.site})"

    def put(self, writer: Writer, target: Register, half: int, source: Half, guard: str | None) -> None:
        """Move one half-word's slot, and its tag where the target keeps tags."""
        slots, tags = source
        self.write(writer, target.name, half, slots, guard)
        if not self.carry.layouts[target.name]:
            self.write(writer, target.name, half, tags, guard, tags=True)

    def copy(self, writer: Writer, target: Register, origin: Operand, guard: str | None) -> None:
        """`mov` of a whole register."""
        for half in self.halves(target):
            source = self.half(writer, origin, half)
            if isinstance(origin, Immediate) and self.carry.layouts[target.name]:
                source = (self.literal(writer, origin, target, half), "0")
            self.put(writer, target, half, source, guard)

    def select(self, writer: Writer, instruction: Instruction, target: Register, guard: str | None) -> None:
        """`selp`: the slot of the side that was chosen."""
        first, second, predicate = instruction.operands[1:]
        condition = writer.source(predicate, "pred")
        sure = bool(self.carry.layouts[target.name])
        for half in self.halves(target):
            sides = []
            for operand in (first, second):
                side = self.half(writer, operand, half)
                if isinstance(operand, Immediate) and sure:
                    side = (self.literal(writer, operand, target, half), "0")
                sides.append(side)
            slots = f"where({condition}, {sides[0][0]}, {sides[1][0]})"
            tags = f"where({condition}, np.uint64({sides[0][1]}), np.uint64({sides[1][1]}))"
            self.put(writer, target, half, (slots, tags), guard)

    def integer(self, writer: Writer, instruction: Instruction, target: Register, guard: str | None) -> None:
        """Integer operations that move half-words; anything else drops the slots."""
        moved = self.moved_halves(writer, instruction)
        for half in self.halves(target):
            self.put(writer, target, half, moved.get(half, NONE), guard)

    def moved_halves(self, writer: Writer, instruction: Instruction) -> dict[int, Half]:
        """Where each half-word of the result comes from."""
        name, parts, operands = instruction.parts[0], instruction.parts, instruction.operands
        if name == "cvt" and parts[-1][0] in "us":
            count = min(BITS[parts[-1]], BITS[parts[-2]]) // 16
            return {n: self.half(writer, operands[1], n) for n in range(count)}
        if name in ("shl", "shr") and isinstance(operands[2], Immediate) and operands[2].value % 16 == 0:
            step = operands[2].value // 16 * (1 if name == "shl" else -1)
            count = BITS[parts[-1]] // 16
            return {
                n: self.half(writer, operands[1], n - step) for n in range(count) if 0 <= n - step < count
            }
        if name in ("or", "xor", "add") and BITS[parts[-1]] >= 16:
            return self.merged(writer, instruction)
        if name == "and" and isinstance(operands[2], Immediate):
            mask = operands[2].value
            kept = [n for n in range(BITS[parts[-1]] // 16) if mask >> 16 * n & 0xFFFF == 0xFFFF]
            return {n: self.half(writer, operands[1], n) for n in kept}
        if name == "prmt" and len(operands) == 4 and isinstance(operands[3], Immediate):
            selector = operands[3].value
            found = {}
            for half in range(2):
                origin = _HALF_OF_NIBBLES.get(selector >> 8 * half & 0xFF)
                if origin is not None:
                    found[half] = self.half(writer, operands[1 + origin // 2], origin % 2)
            return found
        return {}

    def merged(self, writer: Writer, instruction: Instruction) -> dict[int, Half]:
        """`or` of two registers: each half-word from the side that has a slot; the tag settles the rest."""
        found: dict[int, Half] = {}
        for half in range(BITS[instruction.parts[-1]] // 16):
            sides = [self.half(writer, o, half) for o in instruction.operands[1:3]]
            if sides[0] == NONE or sides[1] == NONE:
                found[half] = sides[1] if sides[0] == NONE else sides[0]
            else:
                present = f"(np.asarray({sides[0][1]}) != 0)"
                found[half] = (
                    f"where({present}, {sides[0][0]}, {sides[1][0]})",
                    f"where({present}, {sides[0][1]}, {sides[1][1]})",
                )
        return found

    def move(self, writer: Writer, instruction: Instruction, kind: str) -> None:
        """Follow values through memory, packing and shuffles."""
        handler = {
            "pack": self.pack,
            "load": self.load,
            "store": self.store,
            "shfl": self.shuffle,
            "redux": self.reduce,
            "atomic": self.atomic,
            "atomic result": self.atomic_result,
        }.get(kind)
        if handler is not None:
            narrow = writer.narrow
            handler(writer, instruction)
            writer.narrow = narrow
            return
        # Everything else puts integers into its targets.
        for register in carrying.targets(instruction):
            if self.carry.has(register) and not self.carry.layouts[register]:
                for half in range(writer.code.width(register) // 16):
                    self.write(writer, register, half, "0", None, tags=True)

    def focus(self, writer: Writer, target: Register) -> None:
        """Choose the form that fits a target's shape."""
        writer.narrow = writer.part and self.shapes.of(target.name) != FULL

    def pack(self, writer: Writer, instruction: Instruction) -> None:
        """`mov` that joins or splits registers."""
        target, origin = instruction.operands
        guard = writer.guard(instruction)
        width = BITS[instruction.parts[-1]] // 16
        if id(instruction) in self.carry.widenings:
            self.widen(writer, instruction, guard)
        elif isinstance(origin, Vector) and isinstance(target, Register) and self.carry.has(target.name):
            self.focus(writer, target)
            each = max(width // len(origin.items), 1)
            for half in self.halves(target):
                self.put(
                    writer, target, half, self.half(writer, origin.items[half // each], half % each), guard
                )
        elif isinstance(target, Vector):
            each = max(width // len(target.items), 1)
            for number, item in enumerate(target.items):
                if isinstance(item, Register) and self.carry.has(item.name):
                    self.focus(writer, item)
                    for half in self.halves(item):
                        self.put(writer, item, half, self.half(writer, origin, number * each + half), guard)

    def widen(self, writer: Writer, instruction: Instruction, guard: str | None) -> None:
        """`mov` that makes a float32 of a bfloat16, after its assignment."""
        target, origin = instruction.operands
        assert isinstance(target, Register)
        assert isinstance(origin, Vector)
        if not self.carry.has(target.name):
            return
        self.focus(writer, target)
        narrow, result = origin.items[1], writer.source(target, "f32")
        value, slot = writer.source(narrow, "bf16"), self.read(writer, narrow, "bf16", 0)
        writer.add(f"z = slots.apply('cvt', 'f32', {result}, ('bf16',), ({value},), ({slot},))")
        self.computed(writer, target, "f32", 0, result, guard)

    def load(self, writer: Writer, instruction: Instruction) -> None:
        """`ld`: slots come from memory with the values, which are in `m`."""
        items = (
            instruction.operands[0].items
            if isinstance(instruction.operands[0], Vector)
            else (instruction.operands[0],)
        )
        wanted = [i for i in items if isinstance(i, Register) and self.carry.has(i.name)]
        if not wanted:
            return
        width = BITS[instruction.parts[-1]] // 8
        guard = writer.guard(instruction)
        sure = [bool(i in wanted and isinstance(i, Register) and self.carry.layouts[i.name]) for i in items]
        if any(sure):
            pieces = ", ".join(self.pieces(i) if ok else "()" for i, ok in zip(items, sure, strict=True))
            writer.add(f"mf = slots.fetch(wave.found, m, {width}, ({pieces},), {writer.site})")
        if any(i in wanted and not ok for i, ok in zip(items, sure, strict=True)):
            writer.add(f"ms = slots.load(wave.found, m[0].shape, {width}, {len(items)})")
        for number, item in enumerate(items):
            if item not in wanted or not isinstance(item, Register):
                continue
            for place, half in enumerate(self.halves(item)):
                if sure[number]:
                    source = (f"mf[{number}][{place}]", "0")
                elif 2 * half < width:
                    source = (f"ms[{number}][{half}][0]", f"ms[{number}][{half}][1]")
                else:
                    source = NONE
                self.put(writer, item, half, source, guard)

    def pieces(self, item: Operand) -> str:
        """(half-word, type) of the floats in a register of known layout that is loaded."""
        assert isinstance(item, Register)
        return repr(tuple((half, self.carry.kinds[item.name][half]) for half in self.halves(item)))

    def store(self, writer: Writer, instruction: Instruction) -> None:
        """`st`: slots go to the cells that the store has just written."""
        value = instruction.operands[1]
        items = value.items if isinstance(value, Vector) else (value,)
        width = BITS[instruction.parts[-1]] // 8
        rows = ", ".join(self.row(writer, item, width) for item in items)
        writer.add(f"slots.save(wave.found, {width}, [{rows}])")

    def row(self, writer: Writer, item: Operand, width: int) -> str:
        """(slot, tag) of each half-word of a stored element."""
        halves = [self.half(writer, item, n) for n in range(width // 2)]
        return "[" + ", ".join(f"({s}, {t})" for s, t in halves) + "]"

    def shuffle(self, writer: Writer, instruction: Instruction) -> None:
        """`shfl`: slots move as their values do."""
        target, origin, distance, control = instruction.operands[:4]
        if isinstance(target, Pair):
            target = target.first
        if not isinstance(target, Register) or not self.carry.has(target.name):
            return
        whole = isinstance(origin, Register) and not self.shapes.of(origin.name) & PER_THREAD
        mode = instruction.parts[2] if instruction.parts[1] == "sync" else instruction.parts[1]
        function = writer.code.constant(collectives.shuffle)
        where = f"{writer.source(distance, 'b32')}, {writer.source(control, 'b32')}"
        for half in self.halves(target):
            slots, tags = self.half(writer, origin, half)
            if not whole and (slots, tags) != NONE:
                slots = f"{function}({writer.group}, {mode!r}, {slots}, {where})[0]"
                tags = f"{function}({writer.group}, {mode!r}, {tags}, {where})[0]"
            self.put(writer, target, half, (slots, tags), None)

    def reduce(self, writer: Writer, instruction: Instruction) -> None:
        """`redux.sync` of floats: the slot of the lane whose value is the extremum, before the assignment."""
        target, origin, members = instruction.operands[:3]
        if not isinstance(target, Register) or not self.carry.has(target.name):
            return
        if instruction.parts[-1] != "f32":
            self.reduce_bits(writer, instruction, target)
            return
        if "abs" in instruction.parts:
            self.write(writer, target.name, 0, "slots.lift(v0, 'f32')", None)
            return
        function = writer.code.constant(collectives.extremal_lane)
        slots = self.read(writer, origin, "f32", 0)
        value = writer.source(origin, "f32")
        where = f"{writer.group}, v0, {value}, {slots}, {writer.source(members, 'u32')}"
        self.write(writer, target.name, 0, f"{function}({where})", None)
        if not self.carry.layouts[target.name]:
            bits = f"{writer.code.constant(tag)}(v0.view('u4'), 32)"
            self.write(writer, target.name, 0, bits, None, tags=True)
            self.write(writer, target.name, 1, "0", None, tags=True)

    def reduce_bits(self, writer: Writer, instruction: Instruction, target: Register) -> None:
        """`redux.sync` of integers: an extremum is the bits of one lane, with its slots; a sum has none."""
        origin, members = instruction.operands[1:3]
        kind = instruction.parts[-1]
        function = writer.code.constant(collectives.extremal_lane)
        value, there = writer.source(origin, kind), writer.source(members, "u32")
        for half in self.halves(target):
            source = self.half(writer, origin, half)
            if not {"min", "max"} & set(instruction.parts):
                source = NONE
            if source != NONE:
                slots, tags = (f"{function}({writer.group}, v0, {value}, {s}, {there})" for s in source)
                source = (slots, tags)
            self.put(writer, target, half, source, None)

    def atomic(self, writer: Writer, instruction: Instruction) -> None:
        """Before `atom` and `red`: give the machine the slots of the operands."""
        value = instruction.operands[-1]
        items = value.items if isinstance(value, Vector) else (value,)
        kind = instruction.parts[-1]
        if kind in ("f16", "bf16", "f32", "f64"):
            rows = ", ".join(self.read(writer, item, kind, 0) for item in items)
        elif kind in PAIRS:
            rows = ", ".join(f"[{', '.join(self.read(writer, i, kind, n) for n in (0, 1))}]" for i in items)
        else:
            rows = ", ".join(self.half(writer, item, 0)[0] for item in items)
        writer.add(f"wave.operand_slots = [{rows}]")

    def atomic_result(self, writer: Writer, instruction: Instruction) -> None:
        """After `atom`: the old values' slots."""
        target = instruction.operands[0]
        for number, item in enumerate(target.items if isinstance(target, Vector) else (target,)):
            if isinstance(item, Register) and self.carry.has(item.name):
                for half in self.halves(item):
                    source = (
                        (f"wave.old_slots[{number}][0]", f"wave.old_slots[{number}][1]")
                        if half == 0
                        else NONE
                    )
                    self.put(writer, item, half, source, writer.guard(instruction))

    def matrix(self, writer: Writer, item: Operand, half: int, loading: bool) -> None:
        """`ldmatrix` and `stmatrix`, one half-word at a time, after its access."""
        if not loading:
            slots, tags = self.half(writer, item, half)
            writer.add(f"slots.save(wave.found, 2, [[({slots}, {tags})]])")
        elif isinstance(item, Register) and self.carry.has(item.name):
            writer.add(f"ms = slots.load(wave.found, {'hi' if half else 'lo'}.shape, 2, 1)[0][0]")
            self.put(writer, item, half, ("ms[0]", "ms[1]"), None)
