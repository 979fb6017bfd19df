"""What only tells caches how long to keep a line: it changes no value, and is taken out of a kernel."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from verifier.machine.ptx.syntax import Instruction, Item

_HINT = "L2::cache_hint"
_PREFETCH = ("cp", "async", "bulk", "prefetch")


def without_hints(items: Iterable[Item]) -> list[Item]:
    """Drop the operand of `.L2::cache_hint`, bulk prefetches, and policies that nothing else reads.

    What a policy holds is left open (PTX ISA): where anything else reads one, `createpolicy` stays, which the
    machine lacks.
    """
    left = list(_dropped(items))
    policies = _policies(left)
    opaque = any(
        policies & set(item.read) and not (item.written and policies >= set(item.written))
        for item in left
        if isinstance(item, Instruction)
    )
    return left if opaque else [item for item in left if not _is_policy(item, policies)]


def _policies(items: list[Item]) -> frozenset[str]:
    """Return the registers that hold policies, perhaps moved."""
    found, before = set[str](), -1
    while before != len(found):
        before = len(found)
        for item in items:
            if isinstance(item, Instruction) and _is_policy(item, found):
                found.update(item.written)
    return frozenset(found)


def _is_policy(item: Item, policies: Collection[str]) -> bool:
    """Whether an instruction makes a policy, or moves one."""
    if not isinstance(item, Instruction):
        return False
    moves = item.parts[0] == "mov" and any(name in policies for name in item.read)
    return item.parts[0] == "createpolicy" or moves


def _dropped(items: Iterable[Item]) -> Iterator[Item]:
    for item in items:
        if not isinstance(item, Instruction):
            yield item
        elif item.parts[:4] == _PREFETCH:
            continue
        elif _HINT in item.parts:
            opcode = ".".join(part for part in item.parts if part != _HINT)
            yield replace(item, opcode=opcode, operands=item.operands[:-1])
        else:
            yield item
