"""Control flow: a kernel as numbered basic blocks, in the order of its text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from verifier.machine.execute.findings import UnsupportedInstruction
from verifier.machine.ptx.cache_hints import without_hints
from verifier.machine.ptx.chosen_parameters import with_loads_of_each
from verifier.machine.ptx.contraction import contract
from verifier.machine.ptx.inlining import Inliner
from verifier.machine.ptx.syntax import (
    CARRY,
    Instruction,
    Item,
    Label,
    Symbol,
    Variable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verifier.machine.ptx.syntax import Function, Module

EXIT = -1
_BRANCHES = frozenset({"bra", "ret", "exit", "trap"})
_BARRIERS = frozenset({"bar", "barrier"})
COLLECTIVES = frozenset({"shfl", "vote", "match", "redux", "ldmatrix", "stmatrix", "elect", "movmatrix"})


@dataclass(frozen=True, kw_only=True)
class Block:
    """Instructions that run one after the other; control leaves only after the last."""

    instructions: tuple[Instruction, ...]
    target: int | None = None
    spins: bool = False


@dataclass(frozen=True, kw_only=True)
class Program:
    """A kernel ready to be emitted: blocks, registers with their types, and variables."""

    module: Module
    kernel: Function
    blocks: tuple[Block, ...]
    registers: dict[str, str]
    variables: dict[str, Variable]

    def instructions(self) -> Iterator[Instruction]:
        """Every instruction in the order of the text."""
        for block in self.blocks:
            yield from block.instructions


def is_barrier(instruction: Instruction) -> bool:
    """Barriers of a thread block; `bar.warp.sync` only orders a warp, which runs in step here."""
    parts = instruction.parts
    return parts[0] in _BARRIERS and "warp" not in parts and "cluster" not in parts


def is_of_cluster(instruction: Instruction) -> bool:
    """Halves of the barrier of a thread-block cluster."""
    return instruction.parts[:2] == ("barrier", "cluster")


def _ends_block(instruction: Instruction) -> bool:
    """Whether lanes may go on from here one without the others."""
    waits = is_of_cluster(instruction) and "wait" in instruction.parts
    return instruction.parts[0] in _BRANCHES or is_barrier(instruction) or waits


def is_collective(instruction: Instruction) -> bool:
    """Instructions in which lanes of a warp exchange values."""
    return instruction.parts[0] in COLLECTIVES or instruction.parts[:2] == ("bar", "warp")


def build(module: Module, kernel: Function, *, contraction: bool = False) -> Program:
    """Inline calls, fuse as ptxas does if told so, cut into blocks, and resolve branch targets."""
    inliner = Inliner(module, kernel)
    items = without_hints(inliner.run())
    registers = inliner.registers | {CARRY: "pred"}
    items = with_loads_of_each(items, registers, kernel.parameter_offsets())
    if contraction:
        items = contract(items, registers)
    items = _branch_around(items)
    chunks, starts = _cut(items)
    blocks = []
    for chunk in chunks:
        last = chunk[-1] if chunk else None
        target = None
        if last is not None and last.parts[0] == "bra":
            target = _target(last, starts, kernel.name)
        blocks.append(Block(instructions=tuple(chunk), target=target))
    blocks = _mark_spins(blocks)
    return Program(
        module=module, kernel=kernel, blocks=tuple(blocks), registers=registers, variables=inliner.variables
    )


def _target(branch: Instruction, starts: dict[str, int], kernel: str) -> int:
    operand = branch.operands[0]
    if not isinstance(operand, Symbol) or operand.name not in starts:
        raise UnsupportedInstruction(
            branch.opcode, kernel, branch.line, "branches to no label", branch.location
        )
    return starts[operand.name]


def _branch_around(items: list[Item]) -> list[Item]:
    """Turn guarded barriers, of blocks and of clusters, and collectives into branches around them."""
    result: list[Item] = []
    for number, item in enumerate(_split_reductions(items)):
        if (
            isinstance(item, Instruction)
            and item.guard is not None
            and (is_barrier(item) or is_of_cluster(item) or is_collective(item) or item.parts[0] == "call")
        ):
            skip = f"skip@{number}"
            guard = replace(item.guard, negated=not item.guard.negated)
            result.append(
                Instruction(
                    opcode="bra",
                    operands=(Symbol(skip),),
                    guard=guard,
                    line=item.line,
                    location=item.location,
                )
            )
            result += [replace(item, guard=None), Label(skip)]
        else:
            result.append(item)
    return result


def _split_reductions(items: list[Item]) -> Iterator[Item]:
    """Turn `bar.red` into a barrier and a reduction over the block whose threads have just met there."""
    for item in items:
        if isinstance(item, Instruction) and is_barrier(item) and "red" in item.parts:
            operation = next(p for p in item.parts if p in ("popc", "and", "or"))
            kind = "u32" if operation == "popc" else "pred"
            aligned = "" if "aligned" in item.parts or item.parts[0] == "bar" else "barrier.sync"
            yield replace(item, opcode=aligned or "bar.sync", operands=item.operands[1:-1])
            yield replace(
                item, opcode=f"blockred.{operation}.{kind}", operands=(item.operands[0], item.operands[-1])
            )
        else:
            yield item


def _cut(items: list[Item]) -> tuple[list[list[Instruction]], dict[str, int]]:
    """Cut at labels, after branches and barriers, and before collectives."""
    chunks: list[list[Instruction]] = [[]]
    starts: dict[str, int] = {}
    for item in items:
        if isinstance(item, Label):
            if chunks[-1]:
                chunks.append([])
            starts[item.name] = len(chunks) - 1
            continue
        if is_collective(item) and chunks[-1]:
            chunks.append([])
        chunks[-1].append(item)
        if _ends_block(item):
            chunks.append([])
    if chunks[-1] or any(start == len(chunks) - 1 for start in starts.values()):
        chunks.append([])
    return chunks, starts


def _mark_spins(blocks: list[Block]) -> list[Block]:
    """Mark innermost loops that wait for another thread: at an atomic, a volatile load or an mbarrier."""
    loops = [
        (block.target, end)
        for end, block in enumerate(blocks)
        if block.target is not None and block.target <= end
    ]
    spinning: set[int] = set()
    for start, end in loops:
        inner = any((s, e) != (start, end) and start <= s and e <= end for s, e in loops)
        body = [i for block in blocks[start : end + 1] for i in block.instructions]
        if not inner and any(_waits(i) for i in body):
            spinning |= set(range(start, end + 1))
    return [replace(block, spins=number in spinning) for number, block in enumerate(blocks)]


def _waits(instruction: Instruction) -> bool:
    parts = instruction.parts
    if parts[0] == "atom":
        return "cas" in parts or "exch" in parts
    if parts[0] == "mbarrier":
        return parts[1] in {"test_wait", "try_wait"}
    return parts[0] == "ld" and bool({"volatile", "acquire", "relaxed"} & set(parts))
