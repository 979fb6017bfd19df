"""What writes the lines that keep shadows in emitted code, by its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verifier.machine.shadow.emitter_kind import EmitterKind

if TYPE_CHECKING:
    from verifier.machine.ptx.basic_blocks import Program
    from verifier.machine.translate.expressions import ShadowEmitter
    from verifier.machine.translate.uniformity import RegisterShapes


def make_shadow_emitter(kind: EmitterKind, program: Program, shapes: RegisterShapes) -> ShadowEmitter:
    """Build what writes the lines of one program that keep its shadows."""
    if kind in (EmitterKind.SLOTS, EmitterKind.LINES):
        from verifier.machine.translate import slot_layouts
        from verifier.machine.translate.emit_lines import LineEmitter
        from verifier.machine.translate.emit_slots import SlotEmitter

        emitter = LineEmitter if kind is EmitterKind.LINES else SlotEmitter
        return emitter(program, shapes, slot_layouts.analyse(program))
    if kind is EmitterKind.TAINT:
        from verifier.machine.translate import taint_registers
        from verifier.machine.translate.emit_taint import TaintEmitter

        return TaintEmitter(program, shapes, taint_registers.analyse(program))
    if kind is EmitterKind.GRAPH:
        from verifier.machine.translate import graph_registers
        from verifier.machine.translate.emit_graph import GraphEmitter

        return GraphEmitter(program, shapes, graph_registers.analyse(program))
    from verifier.machine.sanitizers.uninitialised import FlagEmitter

    return FlagEmitter(program, shapes)
