"""Whether a kernel that may begin before what was launched before it has ended waits for that first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verifier.machine.ptx.syntax import Address, Symbol

if TYPE_CHECKING:
    from verifier.machine.ptx.basic_blocks import Program
    from verifier.machine.ptx.syntax import Instruction


_LEAVES = frozenset({"bra", "brx", "call", "exit", "ret"})


def waits_first(program: Program) -> bool:
    """Return whether each thread waits (`griddepcontrol.wait`) before it touches memory, calls or branches.

    A kernel that is launched so, by Triton's `launch_pdl`, begins when those before it let it, and without
    this instruction it need not find what they have stored.
    """
    arguments = {parameter.name for parameter in program.kernel.parameters}
    for one in program.instructions():  # as they are executed, up to the first branch
        if one.parts[:2] == ("griddepcontrol", "wait"):
            return one.guard is None
        if one.parts[0] in _LEAVES or not _of_arguments(one, arguments):
            return False
    return False


def _of_arguments(instruction: Instruction, arguments: set[str]) -> bool:
    """Return whether all memory that an instruction names is that of the kernel's arguments."""
    bases = [operand.base for operand in instruction.operands if isinstance(operand, Address)]
    return all(isinstance(base, Symbol) and base.name in arguments for base in bases)
