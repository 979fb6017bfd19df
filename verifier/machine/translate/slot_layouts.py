"""Which registers have shadows, and which of those can never be stale.

A shadow belongs to a bit pattern. Where every definition of a register is a floating-point result of one
layout, the shadow is known to fit and needs no test; anywhere else (loads, mixed moves) a tag is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from verifier.machine.operations.operation import FLOATS
from verifier.machine.operations.resolve import resolve
from verifier.machine.ptx import hyperbolic, logarithms
from verifier.machine.ptx.liveness import exposed
from verifier.machine.ptx.syntax import BITS, Immediate, Instruction, Operand, Pair, Register, Vector
from verifier.machine.translate import types_read

if TYPE_CHECKING:
    from verifier.machine.ptx.basic_blocks import Program
    from verifier.machine.ptx.logarithms import Logarithm

# A layout lists (half-word, width in bits) of the floats in a register.
SlotLayout = tuple[tuple[int, int], ...]
LAYOUTS: dict[str, SlotLayout] = {
    "f16": ((0, 16),),
    "bf16": ((0, 16),),
    "f32": ((0, 32),),
    "f64": ((0, 64),),
    "f16x2": ((0, 16), (1, 16)),
    "bf16x2": ((0, 16), (1, 16)),
    "f32x2": ((0, 32), (2, 32)),
}
DYNAMIC: SlotLayout = ()
WIDTHS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}
MOVES = frozenset({"mov", "selp", "shfl", "redux"})
# Integer operations that move whole half-words, by which compilers split and join registers.
HALF_MOVES = frozenset({"shl", "shr", "or", "xor", "add", "cvt", "prmt", "and"})


@dataclass(frozen=True, kw_only=True)
class ShadowedRegisters:
    """Registers with shadows: their layout, `DYNAMIC` (empty) where shadows need tags.

    `kinds`: for registers of which every half-word is read as a float of one type, that type by half-word.
    `logarithms`: those recognised, and hyperbolic tangents, by the `id` of their last instruction.
    `widenings`: moves that make a float32 of a bfloat16, by `id`.
    """

    layouts: dict[str, SlotLayout]
    kinds: dict[str, dict[int, str]]
    broken: tuple[Instruction, ...]
    logarithms: dict[int, Logarithm] = field(default_factory=dict)
    widenings: frozenset[int] = frozenset()

    def has(self, register: str) -> bool:
        """Whether a register has shadows."""
        return register in self.layouts


def analyse(program: Program) -> ShadowedRegisters:
    """Forward from floats and loads, backward from floats and stores, then the layouts."""
    recognised = logarithms.find(program) | hyperbolic.find(program)
    inside = logarithms.inner(recognised.values())
    # What is inside a logarithm has no shadows, and its last instruction reads its arguments.
    instructions = [
        logarithms.outside(recognised[id(i)]) if id(i) in recognised else i
        for i in program.instructions()
        if id(i) not in inside
    ]
    singles = _read_as_single(instructions, program)
    widenings = frozenset(id(i) for i in instructions if _widened(i, singles) is not None)
    instructions = [_widened(i, singles) or i for i in instructions]
    produced = _produced(instructions, program, loads=True)
    needed = _needed(instructions)
    shadowed = produced & needed
    kinds = types_read.kinds(instructions, program.registers)
    layouts = layouts_of(instructions, shadowed, program, kinds)
    # Loads may hold integers, so only results of float arithmetic count as values that must not be lost.
    floats = _computed_on(instructions, _produced(instructions, program, loads=False))
    broken = tuple(i for i in instructions if _breaks(i, floats, needed))
    return ShadowedRegisters(
        layouts=layouts, kinds=kinds, broken=broken, logarithms=recognised, widenings=widenings
    )


def _read_as_single(instructions: list[Instruction], program: Program) -> set[str]:
    """Collect the registers of which all is read as one float32."""
    kinds = types_read.kinds(instructions, program.registers)
    return {name for name, found in kinds.items() if found == {0: "f32"}}


def _widened(instruction: Instruction, singles: set[str]) -> Instruction | None:
    """Give the conversion that a move of a bfloat16 above 16 zeros is: CUDA's on compute capability 8.0."""
    if instruction.parts[0] != "mov" or len(instruction.operands) != 2:
        return None
    target, origin = instruction.operands
    if not isinstance(target, Register) or target.name not in singles or not isinstance(origin, Vector):
        return None
    low, high = origin.items[0], origin.items[-1]
    if len(origin.items) != 2 or low != Immediate(0) or not isinstance(high, Register):
        return None
    return replace(instruction, opcode="cvt.f32.bf16", operands=(target, high))


def targets(instruction: Instruction) -> list[str]:
    """List the registers written, without the predicate of a pair."""
    if not instruction.written or not instruction.operands:
        return []
    first = instruction.operands[0]
    if isinstance(first, Pair):
        first = first.first
    return names(first)


def names(operand: Operand) -> list[str]:
    """List the registers in a value operand."""
    if isinstance(operand, Register):
        return [operand.name]
    if isinstance(operand, Vector):
        return [name for item in operand.items for name in names(item)]
    return []


def sources(instruction: Instruction) -> list[str]:
    """List the registers whose value (not address or predicate) is read."""
    start = 1 if instruction.written else 0
    return [name for operand in instruction.operands[start:] for name in names(operand)]


def is_move(instruction: Instruction) -> bool:
    """Whether values pass through unchanged, whole or by half-words."""
    name = instruction.parts[0]
    if name == "redux":
        return _chooses(instruction)
    return name in MOVES or (name in HALF_MOVES and float_result(instruction) is None)


def _chooses(instruction: Instruction) -> bool:
    """Whether `redux` gives the value of one lane, and not a sum or the like of all."""
    return bool({"min", "max"} & set(instruction.parts))


def float_result(instruction: Instruction) -> str | None:
    """Type of a floating-point result of an arithmetic instruction, None for moves and integers."""
    if instruction.parts[0] in MOVES or instruction.parts[0] in ("ld", "st", "atom", "red"):
        return None
    operation = resolve(instruction.opcode)
    if operation is None or operation.results[0] not in FLOATS:
        return None
    return operation.results[0]


def _produced(instructions: list[Instruction], program: Program, *, loads: bool) -> set[str]:
    """Collect the registers that may hold a float with a shadow."""
    found: set[str] = set()
    changed = True
    while changed:
        before = len(found)
        for instruction in instructions:
            name = instruction.parts[0]
            wide = [r for r in targets(instruction) if BITS[program.registers[r]] >= 16]
            loaded = name in ("ldmatrix", "atom") or (name == "ld" and instruction.parts[1] != "param")
            moves = is_move(instruction) and any(r in found for r in sources(instruction))
            if (loads and loaded) or moves or float_result(instruction):
                found |= set(wide)
        changed = len(found) != before
    return found


def _needed(instructions: list[Instruction]) -> set[str]:
    """Collect the registers whose value may end up in float arithmetic or in memory."""
    found: set[str] = set()
    changed = True
    while changed:
        before = len(found)
        for instruction in instructions:
            name = instruction.parts[0]
            used = name in ("st", "stmatrix", "atom", "red") or _reads_floats(instruction)
            if used or (is_move(instruction) and any(r in found for r in targets(instruction))):
                found |= set(sources(instruction))
        changed = len(found) != before
    return found


def _reads_floats(instruction: Instruction) -> bool:
    if instruction.parts[0] in MOVES or instruction.parts[0] in ("ld", "st", "atom", "red"):
        return False
    operation = resolve(instruction.opcode)
    if operation is None or operation.results[0] not in FLOATS:
        return False
    return any(kind in FLOATS for kind in operation.sources)


def layouts_of(
    instructions: list[Instruction],
    shadowed: set[str],
    program: Program,
    kinds: dict[str, dict[int, str]],
) -> dict[str, SlotLayout]:
    """Optimistic fixpoint: a layout holds until a definition with another one is found.

    A register that may be read before it is written holds bits to which no shadow belongs.
    """
    unknown: SlotLayout = ((-1, -1),)
    layouts: dict[str, SlotLayout] = dict.fromkeys(shadowed, unknown)
    layouts |= dict.fromkeys(shadowed & exposed(program), DYNAMIC)
    changed = True
    while changed:
        changed = False
        for instruction in instructions:
            for register in targets(instruction):
                if register not in shadowed or layouts[register] == DYNAMIC:
                    continue
                given = _given(instruction, register, layouts, unknown, program, kinds)
                if given == unknown or given == layouts[register]:
                    continue
                layouts[register] = given if layouts[register] == unknown else DYNAMIC
                changed = True
    return {name: DYNAMIC if layout == unknown else layout for name, layout in layouts.items()}


def _given(  # noqa: PLR0917 - the state of one fixpoint
    instruction: Instruction,
    register: str,
    layouts: dict[str, SlotLayout],
    unknown: SlotLayout,
    program: Program,
    kinds: dict[str, dict[int, str]],
) -> SlotLayout:
    """Layout that one definition gives."""
    kind = float_result(instruction)
    if kind is not None:
        return LAYOUTS[kind]
    name = instruction.parts[0]
    if name == "ld" or (name == "mov" and isinstance(instruction.operands[1], Immediate)):
        return _known(instruction, register, unknown, program, kinds)
    if name == "mov" and any(isinstance(o, Vector) for o in instruction.operands):
        return _packed(instruction, layouts, unknown)
    if name in MOVES:
        if name == "redux":
            return LAYOUTS["f32"] if instruction.parts[-1] == "f32" else DYNAMIC
        operands = instruction.operands[1:2] if name != "selp" else instruction.operands[1:3]
        found = {_operand_layout(o, instruction, layouts) for o in operands} - {unknown}
        # A literal fits any layout of one float: it is lifted where it is read.
        literal = ((-2, -2),)
        if literal in found and _ambiguous(operands, program.registers[register]):
            return DYNAMIC
        if found == {literal}:
            width = BITS[program.registers[register]]
            return ((0, width),) if instruction.parts[-1].startswith("f") else DYNAMIC
        found -= {literal}
        if not found:
            return unknown
        layout = found.pop()
        return layout if not found and (len(layout) == 1 or not _has_literal(operands)) else DYNAMIC
    return DYNAMIC


def _known(
    instruction: Instruction,
    register: str,
    unknown: SlotLayout,
    program: Program,
    kinds: dict[str, dict[int, str]],
) -> SlotLayout:
    """Layout of loaded data and literals: that in which they are read, so that they are lifted at once."""
    width = BITS[program.registers[register]]
    literal = instruction.operands[1]
    if register in kinds and BITS[instruction.parts[-1]] == width:
        return tuple((half, WIDTHS[kind]) for half, kind in sorted(kinds[register].items()))
    if isinstance(literal, Immediate):
        if literal.value == 0:  # zero is zero in every layout
            return unknown
        return ((0, width),) if instruction.parts[-1].startswith("f") else DYNAMIC
    return DYNAMIC


def _ambiguous(operands: tuple[Operand, ...], kind: str) -> bool:
    """Sixteen bits of a literal may be float16 or bfloat16; only zero is the same in both."""
    return BITS[kind] == 16 and any(isinstance(o, Immediate) and o.value != 0 for o in operands)


def _has_literal(operands: tuple[Operand, ...]) -> bool:
    return any(isinstance(o, Immediate) for o in operands)


def _operand_layout(operand: Operand, instruction: Instruction, layouts: dict[str, SlotLayout]) -> SlotLayout:
    if isinstance(operand, Register):
        return layouts.get(operand.name, DYNAMIC)
    if isinstance(operand, Immediate) and instruction.parts[0] == "selp":
        return ((-2, -2),)
    return DYNAMIC


def _packed(instruction: Instruction, layouts: dict[str, SlotLayout], unknown: SlotLayout) -> SlotLayout:
    """Layout after `mov` joins or splits registers."""
    target, origin = instruction.operands
    if isinstance(origin, Vector):
        each = BITS[instruction.parts[-1]] // len(origin.items)
        parts = [_operand_layout(o, instruction, layouts) for o in origin.items]
        if unknown in parts:
            return unknown
        if all(part == ((0, each),) for part in parts):
            return tuple((n * each // 16, each) for n in range(len(parts)))
        return DYNAMIC
    if isinstance(target, Vector) and isinstance(origin, Register):
        layout = layouts.get(origin.name, DYNAMIC)
        each = BITS[instruction.parts[-1]] // len(target.items)
        if layout == unknown:
            return unknown
        if layout and all(width == each for _, width in layout) and len(layout) == len(target.items):
            return ((0, each),)
    return DYNAMIC


def _computed_on(instructions: list[Instruction], floats: set[str]) -> set[str]:
    """Add to floats what integer operations, one after another, make of their bits."""
    found = set(floats)
    changed = True
    while changed:
        before = len(found)
        for instruction in instructions:
            passes = is_move(instruction) or _on_integers(instruction)
            if passes and any(r in found for r in sources(instruction)):
                found |= set(targets(instruction))
        changed = len(found) != before
    return found


def _on_integers(instruction: Instruction) -> bool:
    """Whether new bits are computed that are no float; what a comparison answers is none of its operands'."""
    if instruction.parts[0] == "redux":
        return not _chooses(instruction)
    if float_result(instruction) is not None or instruction.parts[0] in (*MOVES, *HALF_MOVES):
        return False
    memory = ("ld", "st", "atom", "red", "ldmatrix", "stmatrix", "cp", "set", "setp")
    return instruction.parts[0] not in memory


def _breaks(instruction: Instruction, floats: set[str], needed: set[str]) -> bool:
    """Tell an integer operation that changes bits between a float and a value that is needed."""
    if not _on_integers(instruction):
        return False
    return bool(set(targets(instruction)) & needed) and any(r in floats for r in sources(instruction))
