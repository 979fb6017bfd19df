"""What can ride along with the emitted code, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verifier.machine.flow import Program
    from verifier.machine.uniformity import Shapes
    from verifier.machine.writer import Shadow


def make_shadow(name: str, program: Program, shapes: Shapes) -> Shadow:
    """Build the shadow of a program: "slots", "lines" (slots that hear of lines), "tags", "uninitialised"."""
    if name in ("slots", "lines"):
        from verifier.machine import carry
        from verifier.machine.emit_lines import LineShadow
        from verifier.machine.emit_slots import SlotShadow

        kind = LineShadow if name == "lines" else SlotShadow
        return kind(program, shapes, carry.analyse(program))
    if name == "tags":
        from verifier.machine import dependence
        from verifier.machine.emit_tags import TagShadow

        return TagShadow(program, shapes, dependence.analyse(program))
    from verifier.machine.sanitizers.uninitialised import UninitialisedShadow

    return UninitialisedShadow(program, shapes)
