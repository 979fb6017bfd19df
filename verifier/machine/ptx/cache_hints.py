"""What only tells caches how long to keep a line: it changes no value, and is taken out of a kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from verifier.machine.ptx.syntax import Immediate, Instruction, Item

_HINT = "L2::cache_hint"
_PREFETCH = ("cp", "async", "bulk", "prefetch")


def without_hints(items: Iterable[Item]) -> list[Item]:
    """Drop the operand of `.L2::cache_hint`, bulk prefetches, and make each `createpolicy` a plain number."""
    return list(_plain(items))


def _plain(items: Iterable[Item]) -> Iterator[Item]:
    for item in items:
        if not isinstance(item, Instruction):
            yield item
        elif item.parts[:4] == _PREFETCH:
            continue
        elif item.parts[0] == "createpolicy":
            # An opaque handle that nothing but hints may read.
            yield replace(item, opcode="mov.b64", operands=(item.operands[0], Immediate(0)))
        elif _HINT in item.parts:
            opcode = ".".join(part for part in item.parts if part != _HINT)
            yield replace(item, opcode=opcode, operands=item.operands[:-1])
        else:
            yield item
