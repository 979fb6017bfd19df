"""Numbers with which a kernel compares floats, as its compiled code has them: computed ones, too."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

from verifier.machine.ptx.literals import literals
from verifier.machine.ptx.syntax import Immediate, Register

if TYPE_CHECKING:
    from verifier.machine.ptx.basic_blocks import Program

_COMPARES = frozenset({"setp", "set", "min", "max"})
_FORMATS = {"f32": (32, "<I", "<f"), "f64": (64, "<Q", "<d")}


def compared_numbers(program: Program) -> frozenset[float]:
    """Return magnitudes of the finite literals that are operands of comparisons, minima and maxima."""
    compares = [i for i in program.instructions() if i.parts[0] in _COMPARES and i.parts[-1] in _FORMATS]
    if not compares:
        return frozenset()
    held = {name: value for name, (_, value) in literals(program).items()}
    found: set[float] = set()
    for instruction in compares:
        kind = instruction.parts[-1]
        for operand in instruction.operands:
            value = held.get(operand.name) if isinstance(operand, Register) else operand
            if isinstance(value, Immediate):
                found.add(abs(_number(value, kind)))
    return frozenset(number for number in found if math.isfinite(number))


def _number(value: Immediate, kind: str) -> float:
    bits, whole, real = _FORMATS[kind]
    number: float = struct.unpack(real, struct.pack(whole, value.value % (1 << bits)))[0]
    return number
