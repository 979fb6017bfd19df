"""Products that ptxas fuses in some turns of a loop alone, because a sum of the next turn takes them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from verifier.machine.ptx.contraction import is_product, is_sum

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verifier.machine.ptx.basic_blocks import Program
    from verifier.machine.ptx.syntax import Instruction


def carried(program: Program) -> Iterator[Instruction]:
    """Yield the products that a sum takes in the next turn of a loop.

    ptxas unrolls loops, and then fuses such a product in the turns that it puts together and in no other:
    neither the program as it is nor `contract` of it is what runs.
    """
    at = [(number, one) for number, block in enumerate(program.blocks) for one in block.instructions]
    loops = [(b.target, n) for n, b in enumerate(program.blocks) if b.target is not None and b.target <= n]
    counts = Counter(name for _, one in at for name in one.written)
    moved: dict[str, set[str]] = {}
    for _, one in at:
        if one.parts[0] in ("neg", "mov"):
            for name in one.read:
                moved.setdefault(name, set()).update(one.written)
    sums = [(place, block, one) for place, (block, one) in enumerate(at) if is_sum(one)]
    for place, (block, one) in enumerate(at):
        names = _held_by(one.written, moved) if is_product(one) else frozenset[str]()
        if any(counts[name] > 1 for name in names) and any(
            earlier < place
            and not names.isdisjoint(taker.read)
            and any(start <= where and block <= end for start, end in loops)
            for earlier, where, taker in sums
        ):
            yield one


def _held_by(names: tuple[str, ...], moved: dict[str, set[str]]) -> frozenset[str]:
    """Return the registers that a value comes to by moves, negated or not."""
    found, pending = set(names), list(names)
    while pending:
        more = moved.get(pending.pop(), set()) - found
        found |= more
        pending += more
    return frozenset(found)
