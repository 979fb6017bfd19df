"""libdevice's float32 tanh, recognised in code that chooses between a polynomial and an exponential by bits.

Near 0 it is x + x^3 P(x^2), elsewhere 1 - 2 / (exp(2|x|) + 1) with the sign of x put back as a bit, which no
slot follows. As with logarithms (see `logarithm`), only the shape is recognised here: that the result really
is the hyperbolic tangent is tested on every value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from verifier.machine.flow import definitions
from verifier.machine.logarithm import Logarithm, Reader, plain
from verifier.machine.syntax import Immediate, Instruction, Operand, Register

if TYPE_CHECKING:
    from verifier.machine.flow import Block, Program

_SIGN = 0x80000000
_PARTS = frozenset(
    {
        *("fma.rn.f32", "mul.f32", "add.f32", "sub.f32", "neg.f32", "abs.f32", "ex2.approx.f32"),
        *("rcp.approx.f32", "rcp.rn.f32", "div.full.f32", "div.rn.f32"),
        *("setp.ge.f32", "setp.gt.f32", "setp.lt.f32", "selp.f32", "selp.b32", "and.b32", "or.b32"),
    }
)


def find(program: Program) -> dict[int, Logarithm]:
    """Give the hyperbolic tangents of a program by the `id` of their last instruction."""
    reader = Reader(program)
    found = (_tangent(reader, i, block) for block in program.blocks for i in block.instructions)
    return {id(one.last): one for one in found if one is not None}


def _tangent(reader: Reader, last: Instruction, block: Block) -> Logarithm | None:
    """Recognise the slice that ends in the choice between both formulas, one of which puts a sign back."""
    if last.guard is not None or plain(last) not in ("selp.f32", "selp.b32"):
        return None
    arguments = (_signed(reader, side) for side in last.operands[1:3])
    argument = next((one for one in arguments if one is not None), None)
    if argument is None:
        return None
    inner = reader.slice(last.operands[1:], {argument.name}, _PARTS)
    if inner is None or not any(plain(i) == "ex2.approx.f32" for i in inner):
        return None
    places = {id(i): place for place, i in enumerate(block.instructions)}
    if not all(id(i) in places for i in inner) or not reader.closed([*inner, last]):
        return None
    # The argument is read where the slice ends: it must be what it was where the slice began.
    first = min(places[id(i)] for i in inner)
    later = block.instructions[first : places[id(last)]]
    if any(argument.name in definitions(i) for i in later):
        return None
    numbers = frozenset(id(i) for i in inner)
    return Logarithm(name="tanhf", last=last, argument=argument, shift=Immediate(0, "f32"), inner=numbers)


def _signed(reader: Reader, side: Operand) -> Register | None:
    """Give the number whose sign bit an operand was given."""
    for part in reader.made_by(side, "or.b32"):
        number, mask = (reader.made_by(part, "and.b32") or (None, None))[:2]
        if mask is not None and reader.literal(mask) == _SIGN and isinstance(number, Register):
            origin = reader.source(number)
            return origin if isinstance(origin, Register) else None
    return None
