"""Which registers may be read before they are written."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verifier.machine.ptx.basic_blocks import Block, Program


def exposed(program: Program) -> frozenset[str]:
    """Give the registers that are live where the kernel begins; a guarded write does not end a life."""
    blocks = program.blocks
    summaries = [read_before_written(block) for block in blocks]
    live: list[frozenset[str]] = [frozenset()] * len(blocks)
    changed = True
    while changed:
        changed = False
        for number in range(len(blocks) - 1, -1, -1):
            read, written = summaries[number]
            after = frozenset[str]().union(*(live[n] for n in following(blocks, number)))
            here = read | (after - written)
            if here != live[number]:
                live[number], changed = here, True
    return live[0] if live else frozenset()


def read_before_written(block: Block) -> tuple[frozenset[str], frozenset[str]]:
    """Give the registers read before any write in the block, and those surely written."""
    read: set[str] = set()
    written: set[str] = set()
    for instruction in block.instructions:
        read |= set(instruction.read) - written
        if instruction.guard is None:
            written |= set(instruction.written)
    return frozenset(read), frozenset(written)


def following(blocks: tuple[Block, ...], number: int) -> list[int]:
    """Blocks that may run next."""
    block = blocks[number]
    last = block.instructions[-1] if block.instructions else None
    found = [] if block.target is None else [block.target]
    leaves = last is not None and last.guard is None and last.parts[0] in ("bra", "ret", "exit")
    if not leaves and number + 1 < len(blocks):
        found.append(number + 1)
    return found
