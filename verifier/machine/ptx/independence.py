"""What of a program decides on data: guards, addresses, lanes, votes and barriers that read what was loaded.

A program without decisions runs the same instructions on the same addresses whatever its tensors hold, so one
run tells the expression of every result for all inputs of the shape (forward analysis of dependence, as in
"structured" kernels of Volta, arXiv 2511.12638). All that memory gives is taken for data, even where a kernel
has put a constant there: that can only lengthen the list.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from verifier.machine.ptx.basic_blocks import is_barrier, is_of_cluster
from verifier.machine.ptx.instruction_counts import is_approximate
from verifier.machine.ptx.liveness import exposed
from verifier.machine.ptx.syntax import Address, Operand, Special, Symbol, Vector, registers_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from verifier.machine.execute.findings import Location
    from verifier.machine.ptx.basic_blocks import Program
    from verifier.machine.ptx.syntax import Instruction

_BRANCHES = frozenset({"bra", "ret", "exit", "trap"})
_READS_MEMORY = frozenset({"ldu", "ldmatrix", "atom", "tex", "suld"})
# Of collectives over a warp, the operands that choose lanes; the one after the target is the value.
_LANES = frozenset({"shfl", "redux", "elect"})
_ASK_VALUES = frozenset({"vote", "match"})
_BEYOND_REGISTERS = _READS_MEMORY | _LANES | _ASK_VALUES | {
    "ld", "st", "red", "cp", "call", "bar", "barrier", "mbarrier", "activemask", "stmatrix", "fence",
    "membar", "ret", "exit", "trap",
}  # fmt: skip
"""What a loop may not hold that does nothing but wait for a barrier in shared memory."""
_CHANGING = ("clock", "timer", "smid", "warpid", "gridid", "pm", "envreg", "total_smem")
"""Parts of the names of special registers: times, the multiprocessor, the warp's slot in it, counters, and
shared memory as a device allots it."""


class Decided(StrEnum):
    """What is decided on data."""

    BRANCH = "branch"
    GUARD = "guard"
    ADDRESS = "address"
    SIZE = "size of a copy"
    LANE = "lane of a shuffle"
    VOTE = "vote"
    BARRIER = "barrier"
    ATOMIC = "atomic, whose order is not fixed"
    CALL = "call"


@dataclass(frozen=True, kw_only=True)
class DataDecision:
    """One instruction that decides on data.

    line: in the PTX text. location: line of the user's source, None where the text names none. register: the
    one that depends on data; empty for atomics, which are decisions whatever they read.
    """

    what: Decided
    opcode: str
    line: int
    location: Location | None
    register: str

    @property
    def by_predicate(self) -> bool:
        """Whether it is a guarded branch: a recording notes by which predicate it was taken."""
        return self.what is Decided.BRANCH and self.opcode.startswith("@") and " bra" in self.opcode

    def __str__(self) -> str:
        """Say what is decided, by which instruction and where."""
        where = f", source {self.location}" if self.location else ""
        reads = f" reads {self.register}" if self.register else ""
        return f"{self.what}: {self.opcode}{reads} (PTX line {self.line}{where})"


def decisions(program: Program) -> tuple[DataDecision, ...]:
    """List what decides on data, in the order of the text; nothing if nothing does."""
    tainted = depending(program)
    return tuple(
        DataDecision(what=what, opcode=one.text(), line=one.line, location=one.location, register=register)
        for one in program.instructions()
        for what, register in _decided(one, tainted)
    )


def depending(program: Program) -> frozenset[str]:
    """Collect the registers, predicates and the carry included, that may depend on what memory holds.

    So do those that may be read before anything is written to them: what they hold then is left open. And so
    do approximate results of constants, which a device may round otherwise.
    """
    found: set[str] = set(exposed(program)) | polled(program)
    instructions = list(program.instructions())
    arguments = frozenset(parameter.name for parameter in program.kernel.parameters)
    changed = True
    while changed:
        before = len(found)
        for one in instructions:
            opens = reads_memory(one, arguments) or reads_changing(one) or is_approximate(one)
            if opens or any(name in found for name in one.read):
                found.update(one.written)
        changed = len(found) != before
    return frozenset(found)


def polled(program: Program) -> set[str]:
    """Collect what tells whether a barrier in shared memory was over when it was looked at, a matter of time.

    Nothing, where a loop does no more than wait for it: how often it turns is seen nowhere.
    """
    found: set[str] = set()
    for number, block in enumerate(program.blocks):
        if any(is_wait(one) for one in block.instructions) and not _only_waits(program, number):
            found.update(name for one in block.instructions for name in one.written)
    return found


def _only_waits(program: Program, number: int) -> bool:
    """Whether a block is a loop of itself that a wait ends, and shows nothing of its turns.

    Each turn computes the same from what is there before the loop and touches no memory, and what follows
    from the wait is read in the loop alone.
    """
    block = program.blocks[number]
    last = block.instructions[-1]
    if block.target != number or last.parts[0] != "bra" or last.guard is None:
        return False
    written = {name for one in block.instructions for name in one.written}
    outside = {
        n for k, other in enumerate(program.blocks) if k != number for i in other.instructions for n in i.read
    }
    known: set[str] = set()
    told: set[str] = set()
    for one in block.instructions:
        if not is_wait(one) and one.parts[0] in _BEYOND_REGISTERS:
            return False
        if one.guard is not None and one is not last:
            return False
        if any(name in written and name not in known for name in one.read):
            return False
        known.update(one.written)
        if is_wait(one) or any(name in told for name in one.read):
            told.update(one.written)
    return last.guard.name in told and not told & outside


def is_wait(instruction: Instruction) -> bool:
    """Whether an instruction asks if a phase of a barrier in shared memory is over."""
    return instruction.parts[0] == "mbarrier" and instruction.parts[1] in {"test_wait", "try_wait"}


def reads_memory(instruction: Instruction, arguments: frozenset[str]) -> bool:
    """Whether an instruction gives what lies in memory, the kernel's own arguments of these names apart.

    What a device function is called with, or returns, lies in parameters as well, and those are memory.
    """
    parts = instruction.parts
    return parts[0] in _READS_MEMORY or (parts[0] == "ld" and not _of_arguments(instruction, arguments))


def _of_arguments(instruction: Instruction, arguments: frozenset[str]) -> bool:
    parts, address = instruction.parts, instruction.operands[1]
    base = address.base if isinstance(address, Address) else None
    known = isinstance(base, Symbol) and base.name in arguments
    return known and len(parts) > 1 and parts[1].split("::")[0] == "param"


def reads_changing(instruction: Instruction) -> bool:
    """Whether an instruction reads a time or a place, which another run, or device, would find changed.

    Which lanes of a warp are active together is left open where they have parted (PTX ISA, activemask), and
    which one of them is elected.
    """
    return instruction.parts[0] in {"activemask", "elect"} or any(
        part in name for name in _specials(instruction.operands) for part in _CHANGING
    )


def _is_of_warp(instruction: Instruction) -> bool:
    return instruction.parts[:2] == ("bar", "warp")


def _specials(operands: tuple[Operand, ...]) -> Iterator[str]:
    for operand in operands:
        if isinstance(operand, Special):
            yield operand.name
        elif isinstance(operand, Vector):
            yield from _specials(operand.items)


def _decided(instruction: Instruction, tainted: frozenset[str]) -> Iterator[tuple[Decided, str]]:
    """Give what one instruction decides on data, and the register that tells."""
    name, operands = instruction.parts[0], instruction.operands
    if instruction.guard is not None and instruction.guard.name in tainted:
        yield Decided.BRANCH if name in _BRANCHES else Decided.GUARD, instruction.guard.name
    if name in ("atom", "red"):
        yield Decided.ATOMIC, ""
    for operand in operands:
        if isinstance(operand, Address):
            yield from ((Decided.ADDRESS, r) for r in registers_of(operand) if r in tainted)
    values = [o for o in operands if not isinstance(o, Address)]
    asked: Sequence[Operand] = ()
    what = Decided.LANE
    if name in _LANES:
        asked = values[1:] if name == "elect" else values[2:]
    elif name in _ASK_VALUES:
        what, asked = Decided.VOTE, values[1:]
    elif name == "blockred":
        what, asked = Decided.BARRIER, values[1:]  # what `bar.red` computes, after its barrier
    elif (
        name == "mbarrier"
        or is_of_cluster(instruction)
        or is_barrier(instruction)
        or _is_of_warp(instruction)
    ):
        what, asked = Decided.BARRIER, values
    elif name == "cp":
        what, asked = Decided.SIZE, values
    elif name == "bra":
        what, asked = Decided.BRANCH, values
    elif name == "call":
        what, asked = Decided.CALL, values
    yield from ((what, r) for operand in asked for r in registers_of(operand) if r in tainted)
