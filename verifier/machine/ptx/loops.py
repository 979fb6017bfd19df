"""The loops of a program: blocks from which control comes back to an earlier one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verifier.machine.ptx.basic_blocks import EXIT

if TYPE_CHECKING:
    from verifier.machine.ptx.basic_blocks import Block


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A loop of a program: the blocks first..last, of which those in `latches` branch back to the first.

    exits: blocks from which lanes leave. heads: whether the first block asks before the body runs.
    """

    first: int
    last: int
    latches: frozenset[int]
    exits: frozenset[int]
    heads: bool


def loops_of(blocks: Sequence[Block]) -> list[Loop]:
    """List the loops of a program: those that share their first block are one."""
    latches: dict[int, set[int]] = {}
    for number, block in enumerate(blocks):
        if block.target is not None and block.target <= number:
            latches.setdefault(block.target, set()).add(number)
    return [_loop(blocks, first, ends) for first, ends in sorted(latches.items())]


def _loop(blocks: Sequence[Block], first: int, latches: set[int]) -> Loop:
    last = max(latches)
    exits = {
        number
        for number in range(first, last + 1)
        if any(not first <= to <= last for to in following(blocks, number))
    }
    asked = all(blocks[number].instructions[-1].guard is None for number in latches)
    return Loop(
        first=first,
        last=last,
        latches=frozenset(latches),
        exits=frozenset(exits),
        heads=asked and first in exits,
    )


def following(blocks: Sequence[Block], number: int) -> set[int]:
    """Return the blocks to which lanes may go from a block; `EXIT` is out of the kernel."""
    block = blocks[number]
    last = block.instructions[-1] if block.instructions else None
    after = number + 1 if number + 1 < len(blocks) else EXIT
    if last is None or last.parts[0] not in {"bra", "ret", "exit"}:
        return {after}
    to = EXIT if block.target is None else block.target
    return {to} if last.guard is None else {to, after}


def reachable(blocks: Sequence[Block]) -> list[int]:
    """Return the numbers of the blocks to which lanes may come, but for those without an instruction."""
    found, waiting = set(), [0]
    while waiting:
        number = waiting.pop()
        if number != EXIT and number not in found:
            found.add(number)
            waiting += following(blocks, number)
    return [number for number in sorted(found) if blocks[number].instructions]
