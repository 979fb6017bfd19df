"""Emission of what lanes of a warp do together: shuffles, votes, matches and reductions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verifier.machine.execute import collectives
from verifier.machine.ptx.basic_blocks import COLLECTIVES
from verifier.machine.ptx.syntax import Instruction, Operand, Pair, Register, registers_of
from verifier.machine.translate.uniformity import PER_BLOCK, PER_THREAD

if TYPE_CHECKING:
    from verifier.machine.translate.expressions import Writer


def write(writer: Writer, instruction: Instruction) -> bool:
    """Shuffles, votes, matches and reductions over a warp."""
    parts, name = instruction.parts, instruction.parts[0]
    call = writer.code.constant
    operands = instruction.operands
    writer.one_block = _alike(writer, operands[0]) if name in COLLECTIVES else False
    if name == "shfl":
        _shuffle(writer, instruction)
    elif name == "activemask":
        writer.add(f"v0 = {call(collectives.active_mask)}({writer.group})")
        writer.assign(operands[0], "b32", "v0", None)
    elif name == "vote":
        predicate, members = writer.source(operands[1], "pred"), writer.source(operands[2], "u32")
        writer.add(f"v0 = {call(collectives.vote)}({writer.group}, {parts[2]!r}, {predicate}, {members})")
        writer.assign(operands[0], "b32" if parts[2] == "ballot" else "pred", "v0", None)
    elif name == "match":
        value, members = writer.source(operands[1], parts[-1]), writer.source(operands[2], "u32")
        mode = parts[1] if parts[1] in ("any", "all") else parts[2]
        writer.add(f"v0, v1 = {call(collectives.match)}({writer.group}, {mode!r}, {value}, {members})")
        _assign_pair(writer, operands[0], "b32")
    elif name == "redux":
        mode = ".".join(p for p in parts[2:] if p != parts[-1])
        value, members = writer.source(operands[1], parts[-1]), writer.source(operands[2], "u32")
        writer.add(f"v0 = {call(collectives.reduce_warp)}({writer.group}, {mode!r}, {value}, {members})")
        if writer.shadow_emitter is not None:
            writer.shadow_emitter.move(writer, instruction, "redux")
        writer.assign(operands[0], parts[-1], "v0", None)
    elif name == "blockred":
        predicate = writer.source(operands[1], "pred")
        writer.add(f"v0 = {call(collectives.block_reduce)}({writer.group}, {parts[1]!r}, {predicate})")
        writer.assign(operands[0], parts[-1], "v0", None)
    elif name == "elect":
        writer.add(f"v0, v1 = {call(collectives.elect)}({writer.group}, {writer.source(operands[1], 'u32')})")
        _assign_pair(writer, operands[0], "b32")
    else:
        return False
    if writer.shadow_emitter is not None and name not in ("shfl", "redux"):
        writer.shadow_emitter.move(writer, instruction, name)
    return True


def _alike(writer: Writer, target: Operand) -> bool:
    """Whether all blocks get the same results, of which there is room for one."""
    shapes = [writer.code.shapes.of(name) for name in registers_of(target)]
    return bool(shapes) and not any(shape & PER_BLOCK for shape in shapes)


def _assign_pair(writer: Writer, operand: Operand, kind: str) -> None:
    """Assign `d|p` or `d` from v0 and v1."""
    if isinstance(operand, Pair):
        writer.assign(operand.first, kind, "v0", None)
        writer.assign(operand.second, "pred", "v1", None)
    else:
        writer.assign(operand, kind, "v0", None)


def _shuffle(writer: Writer, instruction: Instruction) -> None:
    """`shfl.sync`; a value that all lanes of the warp share needs no exchange."""
    operands = instruction.operands
    value, distance, control = (writer.source(o, "b32") for o in operands[1:4])
    target = operands[0]
    register = operands[1]
    same = not isinstance(register, Register) or not writer.code.shapes.of(register.name) & PER_THREAD
    if same and isinstance(target, Register) and not writer.code.shapes.of(target.name) & PER_THREAD:
        writer.add(f"v0 = {value}")
    else:
        function = writer.code.constant(collectives.shuffle)
        mode = instruction.parts[2] if instruction.parts[1] == "sync" else instruction.parts[1]
        writer.add(f"v0, v1 = {function}({writer.group}, {mode!r}, {value}, {distance}, {control})")
    if writer.shadow_emitter is not None:
        writer.shadow_emitter.move(writer, instruction, "shfl")
    _assign_pair(writer, target, "b32")
