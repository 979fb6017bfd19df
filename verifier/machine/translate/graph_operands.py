"""Codes of operands in emitted code that records expressions, and how targets are given theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verifier.machine.ptx.syntax import BITS, Immediate, Instruction, Operand, Register, Vector
from verifier.machine.shadow.node_codes import HALF, LITERAL
from verifier.machine.translate.expressions import immediate
from verifier.machine.translate.slot_layouts import LAYOUTS
from verifier.machine.translate.slot_operands import SCALAR, SlotOperands
from verifier.machine.translate.uniformity import FULL

if TYPE_CHECKING:
    from verifier.machine.translate.expressions import Writer

FIXED = str(LITERAL)
UNKNOWN = "0"


class GraphOperands(SlotOperands):
    """Reads and writes the codes of one program's registers."""

    def half(self, writer: Writer, operand: Operand, half: int) -> str:  # type: ignore[override]
        """Code of one half-word of an operand; what does not depend on data is a literal."""
        if not isinstance(operand, Register) or not self.shadowed.has(operand.name):
            return FIXED
        if half * 16 >= max(writer.code.width(operand.name), 16):
            return FIXED  # a narrower register is extended by zeros
        if self.shadowed.layouts[operand.name]:
            slot = self.slot(writer, operand.name, 0)
            return f"({slot} + {half * HALF})" if half else slot
        return self.slot(writer, operand.name, half)

    def tainted(self, operand: Operand) -> bool:
        """Whether an operand depends on data."""
        if isinstance(operand, Vector):
            return any(self.tainted(item) for item in operand.items)
        return isinstance(operand, Register) and self.shadowed.has(operand.name)

    def code(self, writer: Writer, operand: Operand, kind: str, piece: int) -> str:
        """Code of one float, or predicate, of an operand."""
        if kind == "pred":
            if not self.tainted(operand):
                return FIXED
            assert isinstance(operand, Register)
            slot = self.slot(writer, operand.name, 0)
            if not operand.negated:
                return slot
            value = f"(~{writer.source(operand, 'pred')})"
            return f"slots.node('not.pred', 'pred', {value}, ('pred',), ({slot},), ({value},), {writer.site})"
        scalar = SCALAR.get(kind, kind)
        if isinstance(operand, Immediate):
            half, width = LAYOUTS[kind][piece]
            bits = int(immediate(operand, kind).view(f"u{BITS[kind] // 8}")) >> (16 * half)
            return writer.code.once_a_wave(f"slots.literal({bits & ((1 << width) - 1)}, {scalar!r})")
        if not self.tainted(operand):
            return FIXED
        assert isinstance(operand, Register)
        half, width = LAYOUTS[kind][piece]
        if writer.code.width(operand.name) < BITS[kind]:
            return UNKNOWN
        if width == 16 or self.shadowed.layouts[operand.name] == ((0, width),):
            return self.half(writer, operand, half)
        halves = ", ".join(self.half(writer, operand, half + n) for n in range(width // 16))
        value = self.float_piece(writer, operand, kind, piece)
        whole = f"np.ascontiguousarray({value}).view('u{width // 8}')"
        return f"slots.joined(({halves},), {whole}, {scalar!r}, {writer.site})"

    def put(self, writer: Writer, target: Operand, found: list[str], guard: str | None) -> None:
        """Write the codes of a target, given by half-word; all are computed before any is written."""
        if not isinstance(target, Register) or not self.shadowed.has(target.name):
            return
        writer.narrow = writer.part and self.shapes.of(target.name) != FULL
        width = BITS[self.program.registers[target.name]]
        if self.shadowed.layouts[target.name]:
            self.write(writer, target.name, 0, found[0], guard)
            return
        found = (found + [FIXED] * 4)[: width // 16]
        own = [self.name(writer, target.name, half, False) for half in range(width // 16)]
        if any(name in code for half, code in enumerate(found) for name in own[:half]):
            for half, code in enumerate(found):  # all are read before any is written
                writer.add(f"z{half} = np.array({code})")
            found = [f"z{half}" for half in range(len(found))]
        for half, code in enumerate(found):
            self.write(writer, target.name, half, code, guard)

    def put_bits(
        self, writer: Writer, target: Operand, found: list[str], bits: str, guard: str | None
    ) -> None:
        """Write codes of half-words to a target that may have one code; bits: what it will hold."""
        if not isinstance(target, Register) or not self.shadowed.has(target.name):
            return
        width = BITS[self.program.registers[target.name]]
        if self.shadowed.layouts[target.name] and width > 16:
            kind = "f32" if width == 32 else "f64"
            found = (found + [FIXED] * 4)[: width // 16]
            whole = f"np.ascontiguousarray({bits}).astype('u{width // 8}', copy=False)"
            found = [f"slots.joined(({', '.join(found)},), {whole}, {kind!r}, {writer.site})"]
        self.put(writer, target, found, guard)

    def put_moved(  # noqa: PLR0917
        self,
        writer: Writer,
        target: Operand,
        origins: tuple[Operand, ...],
        found: list[str],
        bits: str,
        guard: str | None,
    ) -> None:
        """Write codes of half-words that come from one of the origins; what has one code hands it on."""
        width = BITS[self.program.registers[target.name]] if isinstance(target, Register) else 0
        if all(self.single(origin, width) for origin in origins):
            self.put(writer, target, found, guard)
        else:
            self.put_bits(writer, target, found, bits, guard)

    def single(self, operand: Operand, width: int) -> bool:
        """Whether an operand has one code for all of so many bits, or is the same for all inputs."""
        if not self.tainted(operand):
            return not isinstance(operand, Vector)
        assert isinstance(operand, Register)
        same = BITS[self.program.registers[operand.name]] == width
        return same and bool(self.shadowed.layouts[operand.name])

    def lose(self, writer: Writer, instruction: Instruction, guard: str | None) -> None:
        """Leave all that an instruction writes unknown."""
        for name in instruction.written:
            if self.shadowed.has(name):
                self.put(writer, Register(name), [UNKNOWN] * 4, guard)

    def follows(self, instruction: Instruction) -> bool:
        """Whether an operation writes a register that depends on data."""
        return any(self.shadowed.has(name) for name in instruction.written)

    def on_data(self, instruction: Instruction) -> bool:
        """Whether data decide if an instruction takes place: a decision, of which nothing more is known."""
        return instruction.guard is not None and self.shadowed.has(instruction.guard.name)
