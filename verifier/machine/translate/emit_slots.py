"""Emission of the lines that move the shadows of registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verifier.machine.execute import collectives
from verifier.machine.operations.operation import FLOATS
from verifier.machine.ptx.syntax import BITS, Immediate, Instruction, Operand, Pair, Register, Vector
from verifier.machine.shadow.slots import MODIFIERS, PAIRS, tag
from verifier.machine.translate import slot_layouts
from verifier.machine.translate.slot_layouts import LAYOUTS
from verifier.machine.translate.slot_operands import NONE, SCALAR, Half, SlotOperands
from verifier.machine.translate.uniformity import FULL

if TYPE_CHECKING:
    from verifier.machine.operations.operation import Operation
    from verifier.machine.ptx.logarithms import Logarithm
    from verifier.machine.translate.expressions import Writer

# Selectors of `prmt` that move whole half-words: nibble pairs 10, 32, 54, 76.
_HALF_OF_NIBBLES = {0x10: 0, 0x32: 1, 0x54: 2, 0x76: 3}


FLOAT_BITS = "v0.view('f4')"
"""A result that was chosen as bits, as the float32 that it is."""


class SlotEmitter(SlotOperands):
    """Writes the lines of one program that compute and move shadows."""

    def pure(self, writer: Writer, instruction: Instruction, operation: Operation) -> None:
        """Write the shadows of an operation whose result is in v0."""
        target, kind = instruction.operands[0], operation.results[0]
        if not isinstance(target, Register) or not self.shadowed.has(target.name):
            return
        guard = writer.guard(instruction)
        found = self.shadowed.logarithms.get(id(instruction))
        if found is not None and operation.name in ("selp", "or"):
            writer.add(f"z = {self.logarithm(writer, found, FLOAT_BITS)}")
            self.computed(writer, target, "f32", 0, FLOAT_BITS, guard=guard)
        elif operation.name == "selp":
            self.select(writer, instruction, target, guard)
        elif operation.name == "mov":
            self.copy(writer, target, instruction.operands[1], guard)
        elif kind in FLOATS:
            for piece in range(len(LAYOUTS[kind])):
                self.arithmetic(writer, instruction, operation, target, piece, guard=guard)
        else:
            self.integer(writer, instruction, target, guard)

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
        """Write one float result."""
        kind = operation.results[0]
        scalar = SCALAR.get(kind, kind)
        result = f"slots.piece(v0, {piece}, {scalar!r})" if kind in SCALAR else "v0"
        writer.add(f"z = {self.value(writer, instruction, operation, piece, result)}")
        self.computed(writer, target, kind, piece, result, guard=guard)

    def computed(
        self, writer: Writer, target: Register, kind: str, piece: int, result: str, *, guard: str | None
    ) -> None:
        """Write the shadow in `z` of one float of a result, with its tag where the target keeps tags."""
        half, width = LAYOUTS[kind][piece]
        self.write(writer, target.name, half, "z", guard)
        if self.shadowed.layouts[target.name]:
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
        """Expression of a result's shadow."""
        if (found := self.shadowed.logarithms.get(id(instruction))) is not None:
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
        shadows = ", ".join(self.read(writer, o, k, n) for (o, k), n in zip(floats, index, strict=True))
        name = ".".join((operation.name, *(p for p in instruction.parts if p in MODIFIERS)))
        return f"slots.apply({name!r}, {scalar!r}, {result}, ({kinds},), ({values},), ({shadows},))"

    def logarithm(self, writer: Writer, found: Logarithm, result: str) -> str:
        """Expression of the shadow of a logarithm, whose own instructions have none."""
        operands = (found.argument, found.shift)
        values = ", ".join(writer.source(o, "f32") for o in operands)
        shadows = ", ".join(self.read(writer, o, "f32", 0) for o in operands)
        return f"slots.logarithm({found.name!r}, {result}, ({values}), ({shadows}), {writer.site})"

    def put(self, writer: Writer, target: Register, half: int, source: Half, guard: str | None) -> None:
        """Move one half-word's shadow, and its tag where the target keeps tags."""
        shadows, tags = source
        self.write(writer, target.name, half, shadows, guard)
        if not self.shadowed.layouts[target.name]:
            self.write(writer, target.name, half, tags, guard, tags=True)

    def copy(self, writer: Writer, target: Register, origin: Operand, guard: str | None) -> None:
        """`mov` of a whole register."""
        for half in self.halves(target):
            source = self.half(writer, origin, half)
            if isinstance(origin, Immediate) and self.shadowed.layouts[target.name]:
                source = (self.literal(writer, origin, target, half), "0")
            self.put(writer, target, half, source, guard)

    def select(self, writer: Writer, instruction: Instruction, target: Register, guard: str | None) -> None:
        """`selp`: the shadow of the side that was chosen."""
        first, second, predicate = instruction.operands[1:]
        condition = writer.source(predicate, "pred")
        sure = bool(self.shadowed.layouts[target.name])
        for half in self.halves(target):
            sides = []
            for operand in (first, second):
                side = self.half(writer, operand, half)
                if isinstance(operand, Immediate) and sure:
                    side = (self.literal(writer, operand, target, half), "0")
                sides.append(side)
            shadows = f"where({condition}, {sides[0][0]}, {sides[1][0]})"
            tags = f"where({condition}, np.uint64({sides[0][1]}), np.uint64({sides[1][1]}))"
            self.put(writer, target, half, (shadows, tags), guard)

    def integer(self, writer: Writer, instruction: Instruction, target: Register, guard: str | None) -> None:
        """Integer operations that move half-words; anything else drops the shadows."""
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
        """`or` of two registers: each half-word from the side that has a shadow; the tag settles the rest."""
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
        for register in slot_layouts.targets(instruction):
            if self.shadowed.has(register) and not self.shadowed.layouts[register]:
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
        if id(instruction) in self.shadowed.widenings:
            self.widen(writer, instruction, guard)
        elif isinstance(origin, Vector) and isinstance(target, Register) and self.shadowed.has(target.name):
            self.focus(writer, target)
            each = max(width // len(origin.items), 1)
            for half in self.halves(target):
                self.put(
                    writer, target, half, self.half(writer, origin.items[half // each], half % each), guard
                )
        elif isinstance(target, Vector):
            each = max(width // len(target.items), 1)
            for number, item in enumerate(target.items):
                if isinstance(item, Register) and self.shadowed.has(item.name):
                    self.focus(writer, item)
                    for half in self.halves(item):
                        self.put(writer, item, half, self.half(writer, origin, number * each + half), guard)

    def widen(self, writer: Writer, instruction: Instruction, guard: str | None) -> None:
        """`mov` that makes a float32 of a bfloat16, after its assignment."""
        target, origin = instruction.operands
        assert isinstance(target, Register)
        assert isinstance(origin, Vector)
        if not self.shadowed.has(target.name):
            return
        self.focus(writer, target)
        narrow, result = origin.items[1], writer.source(target, "f32")
        value, shadow = writer.source(narrow, "bf16"), self.read(writer, narrow, "bf16", 0)
        writer.add(f"z = slots.apply('cvt', 'f32', {result}, ('bf16',), ({value},), ({shadow},))")
        self.computed(writer, target, "f32", 0, result, guard=guard)

    def load(self, writer: Writer, instruction: Instruction) -> None:
        """`ld`: shadows come from memory with the values, which are in `m`."""
        items = (
            instruction.operands[0].items
            if isinstance(instruction.operands[0], Vector)
            else (instruction.operands[0],)
        )
        wanted = [i for i in items if isinstance(i, Register) and self.shadowed.has(i.name)]
        if not wanted:
            return
        width = BITS[instruction.parts[-1]] // 8
        guard = writer.guard(instruction)
        sure = [
            bool(i in wanted and isinstance(i, Register) and self.shadowed.layouts[i.name]) for i in items
        ]
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
        return repr(tuple((half, self.shadowed.kinds[item.name][half]) for half in self.halves(item)))

    def store(self, writer: Writer, instruction: Instruction) -> None:
        """`st`: shadows go to the slots of what the store has just written."""
        value = instruction.operands[1]
        items = value.items if isinstance(value, Vector) else (value,)
        width = BITS[instruction.parts[-1]] // 8
        rows = ", ".join(self.row(writer, item, width) for item in items)
        writer.add(f"slots.save(wave.found, {width}, [{rows}])")

    def row(self, writer: Writer, item: Operand, width: int) -> str:
        """(shadow, tag) of each half-word of a stored element."""
        halves = [self.half(writer, item, n) for n in range(width // 2)]
        return "[" + ", ".join(f"({s}, {t})" for s, t in halves) + "]"

    def shuffle(self, writer: Writer, instruction: Instruction) -> None:
        """`shfl`: shadows move as their values do."""
        target, origin = instruction.operands[:2]
        if isinstance(target, Pair):
            target = target.first
        if not isinstance(target, Register) or not self.shadowed.has(target.name):
            return
        for half in self.halves(target):
            shadows, tags = self.half(writer, origin, half)
            if (shadows, tags) != NONE:
                shadows, tags = (self.exchanged(writer, instruction, value) for value in (shadows, tags))
            self.put(writer, target, half, (shadows, tags), None)

    def reduce(self, writer: Writer, instruction: Instruction) -> None:
        """`redux.sync` of floats: the shadow of the lane that has the extremum, before the assignment."""
        target, origin, members = instruction.operands[:3]
        if not isinstance(target, Register) or not self.shadowed.has(target.name):
            return
        if instruction.parts[-1] != "f32":
            self.reduce_bits(writer, instruction, target)
            return
        if "abs" in instruction.parts:
            self.write(writer, target.name, 0, "slots.lift(v0, 'f32')", None)
            return
        function = writer.code.constant(collectives.extremal_lane)
        shadows = self.read(writer, origin, "f32", 0)
        value = writer.source(origin, "f32")
        where = f"{writer.group}, v0, {value}, {shadows}, {writer.source(members, 'u32')}"
        self.write(writer, target.name, 0, f"{function}({where})", None)
        if not self.shadowed.layouts[target.name]:
            bits = f"{writer.code.constant(tag)}(v0.view('u4'), 32)"
            self.write(writer, target.name, 0, bits, None, tags=True)
            self.write(writer, target.name, 1, "0", None, tags=True)

    def reduce_bits(self, writer: Writer, instruction: Instruction, target: Register) -> None:
        """`redux.sync` of integers: an extremum is the bits of one lane, with its shadows; a sum has none."""
        origin, members = instruction.operands[1:3]
        kind = instruction.parts[-1]
        function = writer.code.constant(collectives.extremal_lane)
        value, there = writer.source(origin, kind), writer.source(members, "u32")
        for half in self.halves(target):
            source = self.half(writer, origin, half)
            if not {"min", "max"} & set(instruction.parts):
                source = NONE
            if source != NONE:
                shadows, tags = (f"{function}({writer.group}, v0, {value}, {s}, {there})" for s in source)
                source = (shadows, tags)
            self.put(writer, target, half, source, None)

    def atomic(self, writer: Writer, instruction: Instruction) -> None:
        """Before `atom` and `red`: give the machine the shadows of the operands."""
        value = instruction.operands[-1]
        items = value.items if isinstance(value, Vector) else (value,)
        kind = instruction.parts[-1]
        if kind in ("f16", "bf16", "f32", "f64"):
            rows = ", ".join(self.read(writer, item, kind, 0) for item in items)
        elif kind in PAIRS:
            rows = ", ".join(f"[{', '.join(self.read(writer, i, kind, n) for n in (0, 1))}]" for i in items)
        else:
            rows = ", ".join(self.half(writer, item, 0)[0] for item in items)
        writer.add(f"wave.operand_shadows = [{rows}]")

    def atomic_result(self, writer: Writer, instruction: Instruction) -> None:
        """After `atom`: the old values' shadows."""
        target = instruction.operands[0]
        for number, item in enumerate(target.items if isinstance(target, Vector) else (target,)):
            if isinstance(item, Register) and self.shadowed.has(item.name):
                for half in self.halves(item):
                    source = (
                        (f"wave.old_shadows[{number}][0]", f"wave.old_shadows[{number}][1]")
                        if half == 0
                        else NONE
                    )
                    self.put(writer, item, half, source, writer.guard(instruction))

    def matrix(self, writer: Writer, item: Operand, half: int, loading: bool) -> None:
        """`ldmatrix` and `stmatrix`, one half-word at a time, after its access."""
        if not loading:
            shadows, tags = self.half(writer, item, half)
            writer.add(f"slots.save(wave.found, 2, [[({shadows}, {tags})]])")
        elif isinstance(item, Register) and self.shadowed.has(item.name):
            writer.add(f"ms = slots.load(wave.found, {'hi' if half else 'lo'}.shape, 2, 1)[0][0]")
            self.put(writer, item, half, ("ms[0]", "ms[1]"), None)
