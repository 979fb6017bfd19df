"""Products that ptxas fuses in some turns of a loop alone, because a sum of the next turn takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verifier.machine.ptx.contraction import is_product, is_sum
from verifier.machine.ptx.reaching_definitions import ReachingDefinitions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verifier.machine.ptx.basic_blocks import Program
    from verifier.machine.ptx.syntax import Instruction


def carried(program: Program) -> Iterator[Instruction]:
    """Yield the products that a sum takes in the next turn of a loop of one block.

    ptxas unrolls such loops, to which no other path leads, and then fuses a product in the turns that it puts
    together and in no other: neither the program as it is nor `contract` of it is what runs.
    """
    flow = ReachingDefinitions(program)
    found: set[int] = set()
    for place, one in enumerate(flow.instructions):
        block = flow.blocks[place]
        if is_sum(one) and program.blocks[block].target == block:
            found |= _over_a_turn(flow, place)
    yield from (flow.instructions[place] for place in sorted(found))


def _over_a_turn(flow: ReachingDefinitions, reader: int) -> set[int]:
    """Return the products that a sum takes, perhaps moved or of another sign, where one link leads back."""
    met, found, pending = set[tuple[int, bool]](), set[int](), [(reader, False)]
    while pending:
        at, back = pending.pop()
        for source in flow.sources(at, flow.instructions[at].operands[1:]):
            link = source, back or source >= at
            if link in met or flow.blocks[source] != flow.blocks[reader]:
                continue
            met.add(link)
            if is_product(flow.instructions[source]):
                found |= {source} if link[1] else set()
            elif flow.instructions[source].parts[0] in ("neg", "mov", "abs"):
                pending.append(link)
    return found
