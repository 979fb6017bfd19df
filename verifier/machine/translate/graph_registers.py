"""Which registers of a program depend on data, and which of these have one code for all of their bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verifier.machine.operations.resolve import resolve
from verifier.machine.ptx.independence import depending
from verifier.machine.ptx.syntax import BITS, Pair, Register
from verifier.machine.translate import types_read
from verifier.machine.translate.slot_layouts import ShadowedRegisters, SlotLayout

if TYPE_CHECKING:
    from verifier.machine.ptx.basic_blocks import Program
    from verifier.machine.ptx.syntax import Instruction


def analyse(program: Program) -> ShadowedRegisters:
    """Find the registers that depend on data.

    A float32 or float64 has one code where its register is read as nothing else, or holds nothing else.
    """
    tainted = depending(program)
    kinds = types_read.kinds(list(program.instructions()), program.registers)
    whole = _whole(program, tainted)
    layouts: dict[str, SlotLayout] = {}
    for name in tainted & set(program.registers):
        width = BITS[program.registers[name]]
        single = kinds.get(name) in ({0: "f32"}, {0: "f64"}) or name in whole
        layouts[name] = ((0, width),) if single or width <= 16 else ()
    return ShadowedRegisters(layouts=layouts, kinds=kinds, broken=())


def _whole(program: Program, tainted: frozenset[str]) -> set[str]:
    """Return registers that hold whole floats, and no parts of any, wherever their bits go."""
    found = {name for name in tainted & set(program.registers) if BITS[program.registers[name]] in (32, 64)}
    changed = True
    while changed:
        before = len(found)
        for one in program.instructions():
            if not _gives_whole(one, found, tainted):
                found.difference_update(one.written)
        changed = len(found) != before
    return found


def _gives_whole(instruction: Instruction, whole: set[str], tainted: frozenset[str]) -> bool:
    """Whether what an instruction writes is a whole float if the registers `whole` hold such."""
    name, operands = instruction.parts[0], instruction.operands
    if name in ("mov", "selp", "shfl"):
        moved = operands[1:3] if name == "selp" else operands[1:2]
        registers = [o for o in moved if isinstance(o, Register)]
        single = len(registers) == len(moved) and isinstance(operands[0], Register | Pair)
        return single and all(one.name in whole or one.name not in tainted for one in registers)
    operation = resolve(instruction.opcode)
    return operation is not None and operation.results in (("f32",), ("f64",))
