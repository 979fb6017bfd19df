"""libdevice's float32 tanh, recognised where code chooses between a polynomial and an exponential by bits.

Near 0 it is x + x^3 P(x^2), elsewhere 1 - 2 / (exp(2|x|) + 1) with the sign of x put back as a bit, which no
shadow follows. Newer compilers compute both and select; older ones branch, and then each arm ends in the
tangent. As with logarithms (see `logarithm`), only the shape is recognised here: that the result really is
the hyperbolic tangent is tested on every value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from verifier.machine.ptx.logarithms import Logarithm, Reader, plain
from verifier.machine.ptx.syntax import Immediate, Instruction, Operand, Register

if TYPE_CHECKING:
    from verifier.machine.ptx.basic_blocks import Block, Program

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
    places = [(i, block) for block in program.blocks for i in block.instructions]
    found = [one for i, block in places if (one := _selected(reader, i, block)) is not None]
    far = [one for i, block in places if (one := _exponential(reader, i, block)) is not None]
    for i, block in places if far else ():
        near = _polynomial(reader, i, block)
        others = [one for one in far if near is not None and _same_result(one, near)]
        if near is not None and others:
            found += [near, *others]
    return {id(one.last): one for one in found}


def _selected(reader: Reader, last: Instruction, block: Block) -> Logarithm | None:
    """Recognise the slice that ends in the choice between both formulas, one of which puts a sign back."""
    if last.guard is not None or plain(last) not in ("selp.f32", "selp.b32"):
        return None
    arguments = (_signed(reader, reader.made_by(side, "or.b32")) for side in last.operands[1:3])
    argument = next((one for one in arguments if one is not None), None)
    return None if argument is None else _tangent(reader, last, block, argument, exponential=True)


def _exponential(reader: Reader, last: Instruction, block: Block) -> Logarithm | None:
    """Recognise the arm of a branch that puts a sign back on the formula with an exponential."""
    if last.guard is not None or plain(last) != "or.b32":
        return None
    argument = _signed(reader, last.operands[1:])
    return None if argument is None else _tangent(reader, last, block, argument, exponential=True)


def _polynomial(reader: Reader, last: Instruction, block: Block) -> Logarithm | None:
    """Recognise the arm of a branch that ends in q x + x; other functions have such an arm too."""
    if last.guard is not None or plain(last) != "fma.rn.f32":
        return None
    argument = reader.source(last.operands[3])
    if not isinstance(argument, Register) or argument not in map(reader.source, last.operands[1:3]):
        return None
    return _tangent(reader, last, block, argument, exponential=False)


def _same_result(one: Logarithm, other: Logarithm) -> bool:
    """Whether two arms give one register the same function of one argument."""
    return (one.argument, one.last.operands[0]) == (other.argument, other.last.operands[0])


def _tangent(
    reader: Reader, last: Instruction, block: Block, argument: Register, *, exponential: bool
) -> Logarithm | None:
    """Collect the slice of one block between an argument, or its size, and an instruction."""
    sizes = set() if last.opcode.startswith("selp") else _sizes(reader, argument)
    inner = reader.slice(last.operands[1:], {argument.name, *sizes}, _PARTS)
    if inner is None or any(plain(i) == "ex2.approx.f32" for i in inner) != exponential:
        return None
    places = {id(i): place for place, i in enumerate(block.instructions)}
    if not all(id(i) in places for i in inner) or not reader.closed([*inner, last]):
        return None
    # The argument is read where the slice ends: it must be what it was where the slice began.
    first = min((places[id(i)] for i in inner), default=places[id(last)])
    later = block.instructions[first : places[id(last)]]
    if any(argument.name in i.written for i in later):
        return None
    numbers = frozenset(id(i) for i in inner)
    return Logarithm(name="tanhf", last=last, argument=argument, shift=Immediate(0, "f32"), inner=numbers)


def _sizes(reader: Reader, argument: Register) -> set[str]:
    """Collect the registers that hold |argument|, by which the branch was taken."""
    readers = (i for i in reader.read.get(argument.name, []) if plain(i) == "abs.f32")
    targets = (i.operands[0] for i in readers)
    return {t.name for t in targets if isinstance(t, Register) and reader.definition(t) is not None}


def _signed(reader: Reader, parts: tuple[Operand, ...]) -> Register | None:
    """Give the number whose sign bit is one of these operands."""
    for part in parts:
        number, mask = (reader.made_by(part, "and.b32") or (None, None))[:2]
        if mask is not None and reader.literal(mask) == _SIGN and isinstance(number, Register):
            origin = reader.source(number)
            return origin if isinstance(origin, Register) else None
    return None
