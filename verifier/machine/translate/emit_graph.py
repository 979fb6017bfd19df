"""Emission of the lines that record the expression of every float that depends on data.

Which registers depend on data is known without running (`independence.depending`): the others hold the same
bits for all inputs and are literals where they are read. Every register that depends on data has codes, and
each definition writes them all: an instruction without a rule here leaves them unknown.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from verifier.machine.execute import collectives
from verifier.machine.ptx.independence import reads_changing
from verifier.machine.ptx.instruction_counts import is_approximate
from verifier.machine.ptx.syntax import BITS, Immediate, Instruction, Operand, Pair, Register, Vector
from verifier.machine.shadow.node_codes import HALF
from verifier.machine.translate.computed_floats import computed_floats, read_as_bits
from verifier.machine.translate.graph_operands import FIXED, UNKNOWN, GraphOperands
from verifier.machine.translate.slot_layouts import LAYOUTS
from verifier.machine.translate.slot_operands import SCALAR
from verifier.machine.translate.uniformity import FULL

if TYPE_CHECKING:
    from verifier.machine.operations.operation import Operation
    from verifier.machine.translate.expressions import Writer

_SCALARS = frozenset({"f16", "bf16", "f32", "f64"})
_HALF_OF_NIBBLES = {0x10: 0, 0x32: 1, 0x54: 2, 0x76: 3}
_WORDS = frozenset({"b32", "u32", "s32", "f32"})
_JOINS = ("and", "or", "xor")
_DIVISIONS = ("div", "rem")
_MATRICES = frozenset({"ldmatrix", "stmatrix"})
_ASKING_WARPS = frozenset({"vote", "match", "redux", "elect"})
"""Instructions that are undefined in a lane that is none of the members that it names (PTX ISA)."""


def _with_other_sign(instruction: Instruction) -> Operand | None:
    """Return the word of which an `xor` turns the highest bit alone, the sign of a float32."""
    for word, mask in (instruction.operands[1:], instruction.operands[:0:-1]):
        if isinstance(mask, Immediate) and mask.value & 0xFFFFFFFF == 1 << 31 and isinstance(word, Register):
            return word
    return None


def _of_words(operation: Operation) -> bool:
    """Whether 32 bits are computed from registers of 32 bits, as floats or as integers."""
    kinds = (*operation.sources, *operation.results)
    return len(operation.results) == 1 and not operation.model and {*kinds} <= _WORDS


class GraphEmitter(GraphOperands):
    """Writes the lines of one program that make nodes and move their codes."""

    @cached_property
    def computed(self) -> dict[str, str]:
        """The registers that hold floats which were computed, and their format."""
        return computed_floats(self.program)

    def before(self, writer: Writer, instruction: Instruction) -> None:
        """Lose what is written without another call of this class; note by what data a branch is taken."""
        if instruction.parts[0] == "bra" and self.on_data(instruction):
            assert instruction.guard is not None
            asked = Register(instruction.guard.name)
            code, taken = self.code(writer, asked, "pred", 0), writer.source(asked, "pred")
            writer.add(f"slots.decided({code}, {taken}, {writer.site})")
        if "uni" in instruction.parts and instruction.guard is not None:
            together = (
                f"{writer.code.constant(collectives.agree)}({writer.group}, {writer.guard(instruction)})"
            )
            writer.add(f"slots.goes_together({together}, {writer.site})")
        if instruction.parts[0] in _MATRICES:
            whole = f"{writer.code.constant(collectives.whole_warps)}({writer.group})"
            writer.add(f"slots.exchange({whole}, {writer.site})")
        if instruction.parts[0] in _DIVISIONS and instruction.parts[-1][0] in "us":
            divisor = writer.source(instruction.operands[2], instruction.parts[-1])
            writer.add(f"slots.divided({divisor}, {writer.guard(instruction)}, {writer.site})")
        for name in read_as_bits(instruction, self.computed):
            if not self.shadowed.has(name):
                bits = writer.source(Register(name), f"u{writer.code.width(name)}")
                kind, guard = self.computed[name], writer.guard(instruction)
                writer.add(f"slots.read_as_bits({bits}, {kind!r}, {guard}, {writer.site})")
        if instruction.parts[0] == "isspacep":
            narrow = writer.narrow
            self.lose(writer, instruction, writer.guard(instruction))
            writer.narrow = narrow

    def pure(self, writer: Writer, instruction: Instruction, operation: Operation) -> None:
        """Write the codes of an operation whose result is in v0."""
        target = instruction.operands[0]
        guard = writer.guard(instruction)
        narrow = writer.narrow
        if not any(self.shadowed.has(n) for n in instruction.written):
            return
        read = instruction.operands[1:]
        if self.on_data(instruction) or reads_changing(instruction):
            self.lose(writer, instruction, guard)
        elif not any(map(self.tainted, read)) and not (operation.carry_in or is_approximate(instruction)):
            for name in instruction.written:
                if self.shadowed.has(name):
                    self.put(writer, Register(name), [FIXED] * 4, guard)
        elif operation.carry_in or operation.carry_out:
            self.lose(writer, instruction, guard)
        elif operation.name == "setp":
            self.compare(writer, instruction, operation, guard)
        elif operation.name == "selp":
            self.select(writer, instruction, operation, guard)
        elif operation.name == "mov" and isinstance(target, Register):
            halves = max(BITS[instruction.parts[-1]] // 16, 1)
            found = [self.half(writer, read[0], n) for n in range(halves)]
            self.put_moved(writer, target, read[:1], found, self.v0_bits(operation), guard)
        elif instruction.parts[0] in (*_JOINS, "not") and instruction.parts[-1] == "pred":
            codes = ", ".join(self.code(writer, o, "pred", 0) for o in read)
            values = ", ".join(writer.source(o, "pred") for o in read)
            kinds = "'pred', " * len(read)
            name = instruction.opcode
            writer.add(
                f"z = slots.node({name!r}, 'pred', v0, ({kinds}), ({codes},), ({values},), {writer.site})"
            )
            self.put(writer, target, ["z"], guard)
        elif self.of_floats(operation):
            self.arithmetic(writer, instruction, operation, guard)
        else:
            self.bits(writer, instruction, operation, guard)
        writer.narrow = narrow

    @staticmethod
    def v0_bits(operation: Operation) -> str:
        """Expression of the result as unsigned integers."""
        kind = operation.results[0]
        return "v0" if kind == "pred" else f"np.ascontiguousarray(v0).view('u{BITS[kind] // 8}')"

    @staticmethod
    def of_floats(operation: Operation) -> bool:
        """Whether one float, or packed ones, are computed from floats alone."""
        kinds = (*operation.sources, operation.results[0])
        return len(operation.results) == 1 and all(SCALAR.get(k, k) in (*_SCALARS, "pred") for k in kinds)

    def arithmetic(
        self, writer: Writer, instruction: Instruction, operation: Operation, guard: str | None
    ) -> None:
        """Write float results, each of a packed one by itself."""
        kind = operation.results[0]
        scalar = SCALAR.get(kind, kind)
        operands = list(zip(instruction.operands[1:], operation.sources, strict=True))
        parts = [SCALAR.get(p, p) for p in instruction.parts]
        found: list[str] = []
        for piece in range(len(LAYOUTS[kind]) if kind != "pred" else 1):
            mine = [operands[1 - piece]] if operation.name == "cvt" and len(operands) == 2 else operands
            pieces = [piece if k in SCALAR else 0 for _, k in mine]
            codes = ", ".join(self.code(writer, o, k, n) for (o, k), n in zip(mine, pieces, strict=True))
            values = ", ".join(
                writer.source(o, k) if k == "pred" else self.float_piece(writer, o, k, n)
                for (o, k), n in zip(mine, pieces, strict=True)
            )
            kinds = ", ".join(repr(SCALAR.get(k, k)) for _, k in mine)
            result = f"slots.piece(v0, {piece}, {scalar!r})" if kind in SCALAR else "v0"
            writer.add(
                f"y{piece} = slots.node({'.'.join(parts)!r}, {scalar!r}, {result}, ({kinds},), ({codes},), "
                f"({values},), {writer.site})"
            )
            width = 1 if kind == "pred" else LAYOUTS[kind][piece][1] // 16
            found += [f"(y{piece} + {n * HALF})" if n else f"y{piece}" for n in range(max(width, 1))]
        target = instruction.operands[0]
        width = BITS[self.program.registers[target.name]] if isinstance(target, Register) else 0
        if kind == "pred" or (kind in ("f32", "f64") and width == BITS[kind]):
            self.put(writer, target, found, guard)
        else:
            self.put_bits(writer, target, found, self.v0_bits(operation), guard)

    def compare(
        self, writer: Writer, instruction: Instruction, operation: Operation, guard: str | None
    ) -> None:
        """`setp` of floats, joined with a predicate by a node of its own; of integers it is unknown."""
        kind = operation.sources[0]
        words = kind not in _SCALARS
        if words and BITS[kind] != 32:
            self.lose(writer, instruction, guard)
            return
        read = instruction.operands[1:]
        join = next((p for p in instruction.parts if p in _JOINS), None)
        name = ".".join(p for p in instruction.parts if p not in _JOINS)
        bare = replace(instruction, operands=instruction.operands[:3])
        codes = "" if words else ", ".join(self.code(writer, o, kind, 0) for o in read[:2])
        values = ", ".join(writer.source(o, kind) for o in read[:2])
        site = writer.site
        made = f"slots.node({name!r}, 'pred', v0, ({kind!r}, {kind!r}), ({codes}), ({values}), {site})"
        writer.add(f"z = {self.words(writer, bare, operation, name, 'pred') if words else made}")
        if join is not None and len(read) > 2:
            third, value = self.code(writer, read[2], "pred", 0), writer.source(read[2], "pred")
            writer.add(
                f"z = slots.node('{join}.pred', 'pred', v0, ('pred', 'pred'), (z, {third}), "
                f"(v0, {value}), {site})"
            )
        target = instruction.operands[0]
        if isinstance(target, Pair):
            writer.add(f"y0 = slots.node('not.pred', 'pred', v0, ('pred',), (z,), (v0,), {site})")
            self.put(writer, target.second, ["y0"], guard)
            target = target.first
        self.put(writer, target, ["z"], guard)

    def select(
        self, writer: Writer, instruction: Instruction, operation: Operation, guard: str | None
    ) -> None:
        """`selp`: a node where data decide, else the code of the side that is chosen."""
        first, second, predicate = instruction.operands[1:]
        target = instruction.operands[0]
        kind = operation.results[0]
        width = BITS[kind]
        condition = writer.source(predicate, "pred")
        if not self.tainted(predicate):
            found = [
                f"where({condition}, {self.half(writer, first, n)}, {self.half(writer, second, n)})"
                for n in range(max(width // 16, 1))
            ]
            self.put_moved(writer, target, (first, second), found, self.v0_bits(operation), guard)
            return
        assert isinstance(target, Register)
        code = self.code(writer, predicate, "pred", 0)
        unsigned = [f"np.ascontiguousarray({writer.source(o, f'b{width}')})" for o in (first, second)]
        if width > 16 and self.shadowed.layouts[target.name]:
            float_kind = "f32" if width == 32 else "f64"
            sides = [
                self.code(writer, o, float_kind, 0) if self.tainted(o) else FIXED for o in (first, second)
            ]
            writer.add(
                f"y0 = slots.select({code}, {condition}, {sides[0]}, {unsigned[0]}, {sides[1]}, "
                f"{unsigned[1]}, {width}, {writer.site})"
            )
            self.put(writer, target, ["y0"], guard)
            return
        if width == 32:
            sides = [f"({self.half(writer, o, 0)}, {self.half(writer, o, 1)})" for o in (first, second)]
            writer.add(
                f"y0, y1 = slots.select_word({code}, {condition}, {sides[0]}, {unsigned[0]}, {sides[1]}, "
                f"{unsigned[1]}, {writer.site})"
            )
            self.put(writer, target, ["y0", "y1"], guard)
            return
        found = []
        for half in range(max(width // 16, 1)):
            pieces = [f"({u} >> {16 * half}).astype('u2')" for u in unsigned]
            writer.add(
                f"y{half} = slots.select({code}, {condition}, {self.half(writer, first, half)}, {pieces[0]}, "
                f"{self.half(writer, second, half)}, {pieces[1]}, 16, {writer.site})"
            )
            found.append(f"y{half}")
        self.put(writer, target, found, guard)

    def bits(self, writer: Writer, instruction: Instruction, operation: Operation, guard: str | None) -> None:
        """Integer operations that move half-words; anything else is unknown, bytes too."""
        target = instruction.operands[0]
        kind = operation.results[0]
        bytes_read = any(BITS[source] < 16 for source in operation.sources if source != "pred")
        if not isinstance(target, Register) or len(operation.results) != 1 or bytes_read or BITS[kind] < 16:
            self.lose(writer, instruction, guard)
            return
        if (
            operation.name == "xor"
            and BITS[kind] == 32
            and (word := _with_other_sign(instruction)) is not None
        ):
            bits = f"np.ascontiguousarray({writer.source(word, kind)}).view('u4')"
            halves = ", ".join(self.half(writer, word, n) for n in range(2))
            code = f"slots.joined(({halves}), {bits}, 'f32', {writer.site})"
            writer.add(
                f"z = slots.node('neg.f32', 'f32', np.ascontiguousarray(v0).view('f4'), ('f32',), ({code},), "
                f"({bits}.view('f4'),), {writer.site})"
            )
            self.put_bits(writer, target, ["z", f"(z + {HALF})"], self.v0_bits(operation), guard)
            return
        found = self.moved(writer, instruction, BITS[kind] // 16)
        masked = any(isinstance(o, Immediate) and o.value for o in instruction.operands[1:])
        masked = masked and operation.name in ("or", "xor")
        lost = [code for code in found if code == UNKNOWN]
        if (masked or len(lost) == len(found) or (lost and operation.name == "and")) and _of_words(operation):
            made = "f32" if kind == "f32" else "b32"
            writer.add(f"z = {self.words(writer, instruction, operation, instruction.opcode, made)}")
            self.put_bits(writer, target, ["z", f"(z + {HALF})"], self.v0_bits(operation), guard)
            return
        if operation.name == "or" and _of_words(operation):
            node = self.words(writer, instruction, operation, instruction.opcode, "b32")
            writer.add(f"y0, y1 = slots.merged_word(({found[0]}, {found[1]}), lambda: {node})")
            found = ["y0", "y1"]
        found += [FIXED if kind[0] in "bu" else UNKNOWN] * 4  # what is extended by zeros
        self.put_bits(writer, target, found, self.v0_bits(operation), guard)

    def words(
        self, writer: Writer, instruction: Instruction, operation: Operation, name: str, made: str
    ) -> str:
        """Expression of the node of an operation on 32 bits as such; made: what it gives."""
        read = list(zip(instruction.operands[1:], operation.sources, strict=False))
        kinds = ["f32" if kind == "f32" else "b32" for _, kind in read]
        codes, values = [], []
        for operand, kind in read:
            bits = f"np.ascontiguousarray({writer.source(operand, kind)}).view('u4')"
            halves = ", ".join(self.half(writer, operand, n) for n in range(2))
            codes.append(f"slots.joined(({halves}), {bits}, 'f32', {writer.site})")
            values.append(f"{bits}.view('f4')" if kind == "f32" else bits)
        return (
            f"slots.node({name!r}, {made!r}, v0, {tuple(kinds)!r}, ({', '.join(codes)},), "
            f"({', '.join(values)},), {writer.site})"
        )

    def moved(self, writer: Writer, instruction: Instruction, count: int) -> list[str]:
        """Give the code of each half-word of an integer result."""
        name, parts, read = instruction.parts[0], instruction.parts, instruction.operands[1:]
        lost = [UNKNOWN] * count
        if name == "cvt" and len(parts) == 3 and {parts[1][0], parts[2][0]} == {"u"}:
            moved = min(BITS[parts[1]], BITS[parts[2]]) // 16
            return [self.half(writer, read[0], n) if n < moved else FIXED for n in range(count)]
        if name in ("shl", "shr") and isinstance(read[1], Immediate) and parts[-1][0] in "bu":
            if read[1].value % 16:
                return lost
            step = read[1].value // 16 * (1 if name == "shl" else -1)
            return [
                self.half(writer, read[0], n - step) if 0 <= n - step < count else FIXED for n in range(count)
            ]
        if name == "and" and any(isinstance(o, Immediate) for o in read):
            mask = next(o for o in read if isinstance(o, Immediate)).value
            other = next(o for o in read if not isinstance(o, Immediate))
            kept = [mask >> 16 * n & 0xFFFF for n in range(count)]
            return [
                self.half(writer, other, n) if k == 0xFFFF else FIXED if k == 0 else UNKNOWN
                for n, k in enumerate(kept)
            ]
        if name in ("or", "xor"):
            words = [f"np.asarray({writer.source(o, parts[-1])})" for o in read]
            return [
                f"slots.merged({self.half(writer, read[0], n)}, ({words[0]} >> {16 * n}) & 65535, "
                f"{self.half(writer, read[1], n)}, ({words[1]} >> {16 * n}) & 65535)"
                for n in range(count)
            ]
        if name == "prmt" and len(parts) == 2 and len(read) == 3 and isinstance(read[2], Immediate):
            origins = [_HALF_OF_NIBBLES.get(read[2].value >> 8 * n & 0xFF) for n in range(2)]
            return [UNKNOWN if o is None else self.half(writer, read[o // 2], o % 2) for o in origins]
        return lost

    def move(self, writer: Writer, instruction: Instruction, kind: str) -> None:
        """Follow values through memory, packing and shuffles; all else that writes is unknown."""
        narrow = writer.narrow
        guard = writer.guard(instruction)
        if kind in _ASKING_WARPS and "sync" in instruction.parts:
            writer.add(f"slots.exchange({self.takes_part(writer, instruction)}, {writer.site})")
        if kind == "store":
            self.store(writer, instruction)
        elif kind == "atomic":
            values = instruction.operands[-1]
            count = len(values.items) if isinstance(values, Vector) else 1
            writer.add(f"wave.operand_shadows = [no_shadow] * {count}")
        elif kind in ("parameter", "address") and not any(map(self.tainted, instruction.operands[1:])):
            for name in instruction.written:
                if self.shadowed.has(name):
                    self.put(writer, Register(name), [FIXED] * 4, guard)
        elif self.on_data(instruction):
            self.lose(writer, instruction, guard)
        elif kind == "pack":
            self.pack(writer, instruction, guard)
        elif kind == "load":
            self.load(writer, instruction, guard)
        elif kind == "shfl":
            self.shuffle(writer, instruction)
        else:
            self.lose(writer, instruction, guard)
        writer.narrow = narrow

    def pack(self, writer: Writer, instruction: Instruction, guard: str | None) -> None:
        """`mov` that joins or splits registers, after its assignment."""
        target, origin = instruction.operands
        width = BITS[instruction.parts[-1]] // 16
        if isinstance(origin, Vector) and isinstance(target, Register) and self.shadowed.has(target.name):
            writer.narrow = writer.part and self.shapes.of(target.name) != FULL
            each = width // len(origin.items)
            if not each:
                self.lose(writer, instruction, guard)
                return
            found = [self.half(writer, item, n) for item in origin.items for n in range(each)]
            self.put_bits(writer, target, found, writer.source(target, f"u{16 * width}"), guard)
        elif isinstance(target, Vector):
            each = width // len(target.items)
            for number, part in enumerate(target.items):
                item = part
                if isinstance(item, Register) and self.shadowed.has(item.name):
                    writer.narrow = writer.part and self.shapes.of(item.name) != FULL
                    found = [self.half(writer, origin, number * each + n) for n in range(each)] or [UNKNOWN]
                    bits = writer.source(item, f"u{BITS[self.program.registers[item.name]]}")
                    self.put_bits(writer, item, found, bits, guard)

    def load(self, writer: Writer, instruction: Instruction, guard: str | None) -> None:
        """`ld`: codes come from memory with the values, which are in `m`."""
        target = instruction.operands[0]
        items = target.items if isinstance(target, Vector) else (target,)
        kind = instruction.parts[-1]
        width = BITS[kind] // 8
        if width < 2 or (kind[0] == "s" and width < 8):
            self.lose(writer, instruction, guard)
            return
        writer.add(f"ms = slots.load(wave.found, m[0].shape, {width}, {len(items)})")
        for number, item in enumerate(items):
            found = [f"ms[{number}][{half}][0]" for half in range(width // 2)]
            self.put_bits(writer, item, found, f"m[{number}]", guard)

    def store(self, writer: Writer, instruction: Instruction) -> None:
        """`st`: codes go to the slots of what the store has just written."""
        value = instruction.operands[1]
        items = value.items if isinstance(value, Vector) else (value,)
        width = BITS[instruction.parts[-1]] // 8
        lost = self.on_data(instruction)
        rows, bits = [], []
        for item in items:
            held = "None" if isinstance(item, Immediate) else writer.source(item, f"u{8 * width}")
            bits.append(held)
            halves = [UNKNOWN if lost else self.half(writer, item, n) for n in range(max(width // 2, 1))]
            if width < 2 and self.tainted(item):
                halves = [UNKNOWN]
            rows.append("[" + ", ".join(f"({h}, 0)" for h in halves) + "]")
        writer.add(f"slots.save(wave.found, {width}, [{', '.join(rows)}], [{', '.join(bits)}])")

    def shuffle(self, writer: Writer, instruction: Instruction) -> None:
        """`shfl`: codes move as their values do."""
        target, origin = instruction.operands[:2]
        if not self.tainted(origin):
            writer.add(f"slots.exchange({self.defined(writer, instruction)}, {writer.site})")
        if isinstance(target, Pair):
            if self.tainted(target.second):
                self.put(writer, target.second, [UNKNOWN if self.tainted(origin) else FIXED], None)
            target = target.first
        if not isinstance(target, Register) or not self.shadowed.has(target.name):
            return
        found = [self.half(writer, origin, half) for half in range(2)]
        if self.tainted(origin):
            writer.add(f"z = {self.defined(writer, instruction)}")
            found = [f"slots.exchanged(z, {self.exchanged(writer, instruction, code)})" for code in found]
        self.put_moved(writer, target, (origin,), found, "np.ascontiguousarray(v0).view('u4')", None)

    def matrix(self, writer: Writer, item: Operand, half: int, loading: bool) -> None:
        """`ldmatrix` and `stmatrix`, one half-word at a time, after its access."""
        if not loading:
            word = f"({writer.source(item, 'u32')} >> {16 * half}).astype('u2')"
            writer.add(f"slots.save(wave.found, 2, [[({self.half(writer, item, half)}, 0)]], [{word}])")
        elif isinstance(item, Register) and self.shadowed.has(item.name):
            name = "hi" if half else "lo"
            writer.add(f"{name}_code = slots.load(wave.found, {name}.shape, 2, 1)[0][0][0]")
            if half:  # a float may be both halves
                self.put_bits(writer, item, ["lo_code", "hi_code"], "(lo | (hi << 16))", None)
