"""Emission of the same lines for arithmetics that hear which line of the source each operation stands on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verifier.machine.translate.emit_slots import SlotEmitter

if TYPE_CHECKING:
    from verifier.machine.operations.operation import Operation
    from verifier.machine.ptx.syntax import Instruction
    from verifier.machine.translate.expressions import Writer


class LineEmitter(SlotEmitter):
    """Tells the arithmetic (`at(location)`) where it is before each instruction whose shadows it computes."""

    def pure(self, writer: Writer, instruction: Instruction, operation: Operation) -> None:
        """Write the shadows of an operation after its place."""
        self.announce(writer, instruction)
        super().pure(writer, instruction, operation)

    def move(self, writer: Writer, instruction: Instruction, kind: str) -> None:
        """Follow values after their place, since atomic additions compute."""
        self.announce(writer, instruction)
        super().move(writer, instruction, kind)

    def announce(self, writer: Writer, instruction: Instruction) -> None:
        """Write the line that says where the next operations stand."""
        writer.add(f"slots.arithmetic.at({writer.code.constant(instruction.location)})")
