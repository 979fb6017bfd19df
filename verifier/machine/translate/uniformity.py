"""Which registers hold one value for all threads, one a thread, one a block: they need no more room.

A wave is an array of (blocks, threads); a register that does not depend on the block has shape
(1, threads), one that does not depend on the thread (blocks, 1), and broadcasting does the rest.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verifier.machine.ptx.basic_blocks import COLLECTIVES
from verifier.machine.ptx.syntax import Address, Operand, Special, Symbol, Vector

if TYPE_CHECKING:
    from verifier.machine.ptx.basic_blocks import Program
    from verifier.machine.ptx.syntax import Instruction

SAME, PER_THREAD, PER_BLOCK, FULL = 0, 1, 2, 3
OF_A_THREAD = ("%tid", "%laneid", "%warpid", "%lanemask")
OF_A_BLOCK = ("%ctaid", "%smid", "%clusterid", "%cluster_ctaid", "%cluster_ctarank")
"""How the names of special registers begin that differ between threads of a block, and between blocks."""


@dataclass(frozen=True, kw_only=True)
class RegisterShapes:
    """Shape class of every register; `uniform` says that no branch can ever diverge within a wave."""

    uniform: bool
    classes: dict[str, int]

    def of(self, register: str) -> int:
        """Class of a register that the kernel may never define."""
        return self.classes.get(register, FULL)


def analyse(program: Program) -> RegisterShapes:
    """Assume that no branch diverges; when that refutes itself, keep only what holds under divergence.

    With divergence a register with several definitions, or one loaded from memory, may differ between
    lanes that reach the instruction at different times; a single definition by a pure operation cannot.
    """
    optimistic = _fixpoint(program, uniform=True)
    branches = [b.instructions[-1] for b in program.blocks if b.instructions]
    guards = [
        i.guard.name for i in branches if i.guard is not None and i.parts[0] in ("bra", "ret", "exit", "trap")
    ]
    if all(optimistic.get(name, FULL) == SAME for name in guards):
        return RegisterShapes(uniform=True, classes=optimistic)
    return RegisterShapes(uniform=False, classes=_fixpoint(program, uniform=False))


def all_full(program: Program) -> RegisterShapes:
    """Every register with one value a lane: what sanitizers that look at single lanes need."""
    return RegisterShapes(uniform=False, classes=dict.fromkeys(program.registers, FULL))


def _fixpoint(program: Program, *, uniform: bool) -> dict[str, int]:
    counts = Counter(name for i in program.instructions() for name in i.written)
    classes: dict[str, int] = dict.fromkeys(counts, SAME)
    if not uniform:
        classes |= {name: FULL for name, count in counts.items() if count > 1}
    changed = True
    while changed:
        changed = False
        for instruction in program.instructions():
            written = instruction.written
            if not written:
                continue
            level = _result(instruction, classes, uniform, program)
            for name in written:
                if classes[name] | level != classes[name]:
                    classes[name] |= level
                    changed = True
    return classes


def _result(instruction: Instruction, classes: dict[str, int], uniform: bool, program: Program) -> int:
    """Class of what an instruction writes, given those of what it reads."""
    level = 0
    for name in instruction.read:
        level |= classes.get(name, FULL)
    for operand in instruction.operands:
        level |= _special(operand)
    parts = instruction.parts
    name = parts[0]
    if name == "ld":
        return level | _loaded(instruction, uniform, program, level)
    if name in COLLECTIVES:
        if not uniform:
            return FULL
        if name == "ldmatrix":
            return FULL
        return (
            level
            if name == "shfl" and not level & PER_THREAD and len(parts) and _plain_shuffle(instruction)
            else level | PER_THREAD
        )
    if name in ("atom", "bar", "barrier", "mbarrier", "activemask", "call", "blockred"):
        return FULL
    return level


def _plain_shuffle(instruction: Instruction) -> bool:
    """Tell a shuffle without the predicate that says whether the source lane was in range."""
    return type(instruction.operands[0]).__name__ == "Register"


def _special(operand: Operand) -> int:
    if isinstance(operand, Vector):
        level = 0
        for item in operand.items:
            level |= _special(item)
        return level
    if not isinstance(operand, Special):
        return SAME
    if operand.name.startswith(OF_A_THREAD):
        return PER_THREAD
    if operand.name.startswith(OF_A_BLOCK):
        return PER_BLOCK
    if "clock" in operand.name or "timer" in operand.name:
        return FULL
    return SAME


def _loaded(instruction: Instruction, uniform: bool, program: Program, address_level: int) -> int:
    """Give what a load adds to the class of its address (and of its guard)."""
    parts = instruction.parts
    address = instruction.operands[1]
    if parts[1] == "param":
        kernel = {p.name for p in program.kernel.parameters}
        base = address.base if isinstance(address, Address) else None
        return SAME if isinstance(base, Symbol) and base.name in kernel else FULL
    if ("nc" in parts or parts[1] == "const") and (uniform or not address_level):
        # What nobody writes: lanes of one address read one value, whenever they come. Of several addresses
        # those of lanes that do not come may lie anywhere.
        return SAME
    if not uniform:
        return FULL
    if parts[1].startswith("shared"):
        return PER_BLOCK
    return SAME if parts[1] == "global" else FULL
