"""Names of the slots of registers, and the shadows and tags of operands, in emitted code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.execute import collectives
from verifier.machine.ptx.syntax import BITS, Immediate, Instruction, Operand, Register
from verifier.machine.shadow.slots import tag
from verifier.machine.translate.expressions import immediate
from verifier.machine.translate.slot_layouts import LAYOUTS, ShadowedRegisters
from verifier.machine.translate.uniformity import FULL, PER_BLOCK, PER_THREAD, SAME, RegisterShapes

if TYPE_CHECKING:
    from verifier.machine.ptx.basic_blocks import Program
    from verifier.machine.translate.expressions import Writer

_SUBSET = {FULL: "[ix]", PER_THREAD: "[it]", PER_BLOCK: "[ib]", SAME: ""}
SCALAR = {"f16x2": "f16", "bf16x2": "bf16", "f32x2": "f32"}
NONE = ("no_shadow", "0")

Half = tuple[str, str]


class SlotOperands:
    """Reads and writes the slots of one program's registers."""

    def __init__(self, program: Program, shapes: RegisterShapes, shadowed: ShadowedRegisters) -> None:
        """Take the registers that have shadows."""
        self.program, self.shapes, self.shadowed = program, shapes, shadowed

    # Names of slots.

    def allocation(self, shape: int, tags: bool, exposed: bool) -> str:
        """Give the expression that allocates shadows or tags."""
        return f"slots.allocate(wave.extents, {shape}, tags={tags}, exposed={exposed})"

    def before(self, writer: Writer, instruction: Instruction) -> None:
        """Shadows take no effect by themselves."""

    def follows(self, instruction: Instruction) -> bool:
        """Whether there is anything to write for an operation without side effects."""
        return True

    def broken(self) -> tuple[Instruction, ...]:
        """Give the integer operations by which a chain of shadows may be lost."""
        return self.shadowed.broken

    def exchanged(self, writer: Writer, instruction: Instruction, value: str) -> str:
        """Expression of what a `shfl` gives of a shadow, code or tag; of one that all lanes share, itself."""
        origin, distance, control = instruction.operands[1:4]
        if isinstance(origin, Register) and not self.shapes.of(origin.name) & PER_THREAD:
            return value
        mode = instruction.parts[2] if instruction.parts[1] == "sync" else instruction.parts[1]
        function = writer.code.constant(collectives.shuffle)
        where = f"{writer.source(distance, 'b32')}, {writer.source(control, 'b32')}"
        return f"{function}({writer.group}, {mode!r}, {value}, {where})[0]"

    @staticmethod
    def defined(writer: Writer, instruction: Instruction) -> str:
        """Expression of where a `shfl` says what a lane gets: not from one that does not take part."""
        distance, control, *members = instruction.operands[2:]
        sync = instruction.parts[1] == "sync"
        mode = instruction.parts[2] if sync else instruction.parts[1]
        of_members = writer.source(members[0], "u32") if sync and members else "np.array([0xFFFFFFFF])"
        where = f"{writer.source(distance, 'b32')}, {writer.source(control, 'b32')}, {of_members}"
        return f"{writer.code.constant(collectives.defined)}({writer.group}, {mode!r}, {where})"

    @staticmethod
    def takes_part(writer: Writer, instruction: Instruction) -> str:
        """Expression of which lanes are members of the collective that they execute."""
        members = writer.source(instruction.operands[-1], "u32")
        return f"{writer.code.constant(collectives.takes_part)}({writer.group}, {members})"

    def slot(self, writer: Writer, register: str, half: int, *, tags: bool = False) -> str:
        """Expression of the shadow or tag in a register's slot, for the lanes of this form."""
        name = self.name(writer, register, half, tags)
        if not writer.part or writer.narrow:
            return name
        subset = _SUBSET[self.shapes.of(register)]
        if subset:
            writer.needs.add(subset[1:-1])
        return f"{name}_flat{subset}"

    def name(self, writer: Writer, register: str, half: int, tags: bool) -> str:
        """Name of the array of a register's slot, declared on first use."""
        name = f"{'T' if tags else 'S'}_{writer.code.register(register)}_{half}"
        writer.code.shadows[name] = (register, tags)
        return name

    def write(
        self, writer: Writer, register: str, half: int, value: str, guard: str | None, *, tags: bool = False
    ) -> None:
        """Assign a shadow or tag where the guard holds."""
        name = self.name(writer, register, half, tags)
        if not writer.part or writer.narrow:
            writer.add(f"copyto({name}, {value}{f', where={guard}' if guard else ''})")
            return
        writer.needs.add("ix")
        merged = f"where({guard}, {value}, {name}_flat[ix])" if guard else value
        writer.add(f"{name}_flat[ix] = {merged}")

    # Reading shadows of operands.

    def float_piece(self, writer: Writer, operand: Operand, kind: str, piece: int) -> str:
        """Expression of one float of an operand."""
        source = writer.source(operand, kind)
        if kind in SCALAR:
            return f"slots.piece({source}, {piece}, {SCALAR[kind]!r})"
        return source

    def read(self, writer: Writer, operand: Operand, kind: str, piece: int) -> str:
        """Expression of the shadow that belongs to one float of an operand."""
        scalar = SCALAR.get(kind, kind)
        half, width = LAYOUTS[kind][piece]
        if isinstance(operand, Immediate):
            bits = int(immediate(operand, kind).view(f"u{BITS[kind] // 8}")) >> (16 * half) & (
                (1 << width) - 1
            )
            return writer.code.once_a_wave(f"slots.constant({bits}, {scalar!r})")
        value = self.float_piece(writer, operand, kind, piece)
        if isinstance(operand, Register) and self.shadowed.has(operand.name):
            layout = self.shadowed.layouts[operand.name]
            if (half, width) in layout:
                return self.slot(writer, operand.name, half)
            if not layout:
                shadows, tags = (
                    self.slot(writer, operand.name, half),
                    self.slot(writer, operand.name, half, tags=True),
                )
                return f"slots.read({value}, {scalar!r}, {shadows}, {tags}, {writer.site})"
        return f"slots.lift({value}, {scalar!r})"

    def half(self, writer: Writer, operand: Operand, half: int) -> Half:
        """(shadow, tag) of one half-word of an operand."""
        if not isinstance(operand, Register) or not self.shadowed.has(operand.name):
            return NONE
        layout = self.shadowed.layouts[operand.name]
        if not layout:
            if half * 16 >= writer.code.width(operand.name):
                return NONE
            return self.slot(writer, operand.name, half), self.slot(writer, operand.name, half, tags=True)
        for start, width in layout:
            if start == half:
                return self.slot(writer, operand.name, half), self.tag_of(writer, operand.name, half, width)
        return NONE

    def tag_of(self, writer: Writer, register: str, half: int, width: int) -> str:
        """Tag of a float that is known to fit, from the register's bits."""
        have = writer.code.width(register)
        bits = writer.read(register, f"u{have // 8}")
        if have != width:
            shift = writer.code.constant(np.array(16 * half, dtype=f"u{have // 8}"))
            bits = f"({bits} >> {shift}).astype('u{width // 8}')"
        return f"{writer.code.constant(tag)}({bits}, {width})"

    def halves(self, target: Register) -> list[int]:
        """Half-words of a target that have slots."""
        layout = self.shadowed.layouts[target.name]
        if layout:
            return [start for start, _ in layout]
        return list(range(BITS[self.program.registers[target.name]] // 16))

    def literal(self, writer: Writer, origin: Immediate, target: Register, half: int) -> str:
        """Slot of a literal in a register of known layout."""
        width = dict(self.shadowed.layouts[target.name])[half]
        known = self.shadowed.kinds.get(target.name, {})
        kind = known.get(half) or {16: "f16", 32: "f32", 64: "f64"}[width]
        whole = int(immediate(origin, f"u{writer.code.width(target.name)}"))
        bits = whole >> 16 * half & ((1 << width) - 1)
        return writer.code.once_a_wave(f"slots.constant({bits}, {kind!r})")
