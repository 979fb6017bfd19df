"""The guards of a program: predicates that switch instructions off for some lanes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verifier.machine.ptx.syntax import Immediate
from verifier.machine.translate.uniformity import PER_THREAD

if TYPE_CHECKING:
    from verifier.machine.ptx.basic_blocks import Block, Program
    from verifier.machine.ptx.syntax import Instruction
    from verifier.machine.translate.uniformity import RegisterShapes

_BRANCHES = frozenset({"bra", "ret", "exit"})


@dataclass(frozen=True, kw_only=True)
class Guard:
    """What one predicate guards in one block.

    name: of the predicate's register in the translation; shape: which lanes share it. instruction: the first
    under the guard; where it is a branch, the guard says who goes there.
    """

    block: int
    name: str
    shape: int
    negated: bool
    instruction: Instruction

    @property
    def by_lane(self) -> bool:
        """Whether lanes of one thread block may differ."""
        return bool(self.shape & PER_THREAD)

    @property
    def branches(self) -> bool:
        """Whether it guards a branch."""
        return self.instruction.parts[0] in _BRANCHES


def guards_of(program: Program, shapes: RegisterShapes, names: Mapping[str, str]) -> tuple[Guard, ...]:
    """List the guards of a program that can be read when their block has run.

    names: of registers in the translation. Left out are predicates that are constants (Triton's loads without
    a mask), those that are written anew behind the guarded instruction, and branches that a thread block
    takes as one: the blocks behind them tell.
    """
    constants = _constants(program)
    return tuple(
        Guard(
            block=number,
            name=names[register],
            shape=shapes.of(register),
            negated=negated,
            instruction=instruction,
        )
        for number, block in enumerate(program.blocks)
        for (register, negated), instruction in _guarded(block).items()
        if register in names and register not in constants
        if instruction.parts[0] not in _BRANCHES or shapes.of(register) & PER_THREAD
    )


def _guarded(block: Block) -> dict[tuple[str, bool], Instruction]:
    """Return the first instruction under each guard that still holds at the end of the block."""
    found: dict[tuple[str, bool], Instruction] = {}
    overwritten: set[str] = set()
    for instruction in block.instructions:
        if (guard := instruction.guard) is not None:
            found.setdefault((guard.name, guard.negated), instruction)
        overwritten.update(name for name in instruction.written if any(name == one for one, _ in found))
    return {key: instruction for key, instruction in found.items() if key[0] not in overwritten}


def _constants(program: Program) -> set[str]:
    """Return the predicates that are only ever set to a number."""
    constant: dict[str, bool] = {}
    for instruction, register in _written(program):
        plain = instruction.parts[:2] == ("mov", "pred") and isinstance(instruction.operands[1], Immediate)
        constant[register] = constant.get(register, True) and plain
    return {register for register, only in constant.items() if only}


def _written(program: Program) -> Iterator[tuple[Instruction, str]]:
    for instruction in program.instructions():
        for register in instruction.written:
            yield instruction, register
