"""What can ride along with the emitted code, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verifier.machine.flow import Program
    from verifier.machine.uniformity import Shapes
    from verifier.machine.writer import Shadow


def make_shadow(name: str, program: Program, shapes: Shapes) -> Shadow:
    """Build the shadow of a program: "slots" or "uninitialised"."""
    if name == "slots":
        from verifier.machine import carry
        from verifier.machine.emit_slots import SlotShadow

        return SlotShadow(program, shapes, carry.analyse(program))
    from verifier.machine.sanitizers.uninitialised import UninitialisedShadow

    return UninitialisedShadow(program, shapes)
