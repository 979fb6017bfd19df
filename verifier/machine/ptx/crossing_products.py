"""Products that ptxas may fuse into a sum of another basic block, where it makes one block of several.

It unrolls loops, and leaves out branches that constants decide: of a loop of known turns nothing is left.
Then products are fused that `contract` takes for rounded, in all turns or in some.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from verifier.machine.ptx.basic_blocks import EXIT, is_collective
from verifier.machine.ptx.contraction import is_product, is_sum
from verifier.machine.ptx.liveness import following
from verifier.machine.ptx.reaching_definitions import ReachingDefinitions
from verifier.machine.ptx.syntax import Address, Operand, Special, Vector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verifier.machine.ptx.basic_blocks import Block, Program
    from verifier.machine.ptx.syntax import Instruction

_LEAVES = frozenset({"bra", "ret", "exit", "trap"})


def crossing(program: Program) -> Iterator[Instruction]:
    """Yield products that ptxas may fuse though `contract` does not; program: as it is contracted.

    Those are products that a sum takes
    - in the next turn of a loop, which may be unrolled;
    - behind a branch out of the loop that both are in: in turns that are put together none is left;
    - behind a branch that constants decide, or inside of a loop of a known number of turns where the product
      is outside, or the other way round;
    - behind a branch that is always taken and the only way to the sum.
    """
    flow, blocks = ReachingDefinitions(program), _Blocks(program)
    found = {
        source
        for place, one in enumerate(flow.instructions)
        if is_sum(one)
        for source, back in _products(flow, place)
        if blocks.may_join(flow.blocks[source], flow.blocks[place], back=back)
    }
    yield from (flow.instructions[place] for place in sorted(found))


def _products(flow: ReachingDefinitions, reader: int) -> set[tuple[int, bool]]:
    """Return the products that a sum takes, moved or of another sign, and whether a link leads back."""
    met, found, pending = set[tuple[int, bool]](), set[tuple[int, bool]](), [(reader, False)]
    while pending:
        at, back = pending.pop()
        for source in flow.sources(at, flow.instructions[at].operands[1:]):
            link = source, back or source >= at
            if source < 0 or link in met:
                continue
            met.add(link)
            if is_product(flow.instructions[source]):
                found.add(link)
            elif flow.instructions[source].parts[0] in ("neg", "mov", "abs"):
                pending.append(link)
    return found


class _Blocks:
    """The blocks of a program, and which of them ptxas may put together."""

    def __init__(self, program: Program) -> None:
        """Look at a program."""
        self._program, self._blocks = program, program.blocks
        self._after = [following(program.blocks, number) for number in range(len(program.blocks))]

    def may_join(self, product: int, reader: int, *, back: bool) -> bool:
        """Whether the blocks of a product and of a sum may become one; back: the next turn's sum.

        A branch that stays inside of a loop keeps them apart, and so does a place where paths meet.
        """
        if back:
            around = (loop for loop in self._loops if loop[0] <= reader and product <= loop[1])
            return any(self._open(product, last) and self._open(first, reader) for first, last in around)
        if self._part[product] == self._part[reader]:
            return False
        return (
            any((first <= product <= last) != (first <= reader <= last) for first, last in self._known_loops)
            or any(number in self._decided for number in range(product, reader))
            or (product < reader and self._open(product, reader))
            or self._only_way(product, reader)
        )

    def _open(self, start: int, end: int) -> bool:
        """Whether nothing but branches out of a loop, or what constants decide, lies between two blocks."""
        return all(
            number in self._decided or (number + 1 not in self._targets and self._leaves_a_loop(number, end))
            for number in range(start, end)
            if self._part[number] != self._part[number + 1]
        )

    @cached_property
    def _targets(self) -> frozenset[int]:
        return frozenset(block.target for block in self._blocks if block.target is not None)

    @cached_property
    def _loops(self) -> list[tuple[int, int]]:
        targets = ((block.target, number) for number, block in enumerate(self._blocks))
        return [(target, number) for target, number in targets if target is not None and target <= number]

    @cached_property
    def _part(self) -> list[int]:
        """The number of the basic block that each block is part of: barriers, say, cut it here alone."""
        found = [0]
        for number, block in enumerate(self._blocks[:-1], 1):
            ends = bool(block.instructions) and block.instructions[-1].parts[0] in _LEAVES
            found.append(found[-1] + (ends or number in self._targets))
        return found

    @cached_property
    def _known_loops(self) -> list[tuple[int, int]]:
        """The loops that constants end: in a block that leaves them."""
        return [
            (first, last)
            for first, last in self._loops
            if any(
                number in self._decided and any(not first <= to <= last for to in self._after[number])
                for number in range(first, last + 1)
            )
        ]

    @cached_property
    def _decided(self) -> frozenset[int]:
        """The blocks at whose end constants decide where to go."""
        varying = _varying(self._program)
        ends = (
            (number, block.instructions[-1])
            for number, block in enumerate(self._blocks)
            if block.instructions
        )
        return frozenset(
            number
            for number, last in ends
            if last.parts[0] in _LEAVES and last.guard is not None and last.guard.name not in varying
        )

    def _leaves_a_loop(self, number: int, reader: int) -> bool:
        """Whether a block has a way out of a loop in which the reader is."""
        return any(
            first <= number <= last and first <= reader <= last and not first <= to <= last
            for first, last in self._loops
            for to in self._after[number]
        )

    def _only_way(self, product: int, reader: int) -> bool:
        """Whether one block always goes on with the other, to which nothing else leads."""
        parts = self._part
        ends = [(parts[number], parts[to]) for number, after in enumerate(self._after) for to in after]
        ends += [(parts[number], EXIT) for number, block in enumerate(self._blocks) if _may_end(block)]
        links = {link for link in ends if link[0] != link[1]}
        at, met = parts[product], set[int]()
        while at not in met:
            met.add(at)
            nexts = [b for a, b in links if a == at]
            if len(nexts) != 1 or sum(b == nexts[0] for _, b in links) > 1:
                return False
            at = nexts[0]
            if at == parts[reader]:
                return True
        return False


def _may_end(block: Block) -> bool:
    last = block.instructions[-1] if block.instructions else None
    return last is not None and last.guard is not None and last.parts[0] in {"ret", "exit"}


def _varying(program: Program) -> frozenset[str]:
    """Return the registers that may hold more than a number that the text alone says."""
    found, before = set[str](), -1
    while before != len(found):
        before = len(found)
        for one in program.instructions():
            opens = one.parts[0] in {"ld", "atom", "call"} or is_collective(one) or _reads_place(one.operands)
            if opens or any(name in found for name in one.read):
                found.update(one.written)
    return frozenset(found)


def _reads_place(operands: tuple[Operand, ...]) -> bool:
    """Whether operands are memory, or a special register."""
    return any(
        isinstance(one, Address)
        or (isinstance(one, Special) and one.name != "WARP_SZ")
        or (isinstance(one, Vector) and _reads_place(one.items))
        for one in operands
    )
