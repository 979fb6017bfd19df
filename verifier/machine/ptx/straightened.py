"""What ptxas sees of a kernel's text where it fuses: no label that nothing branches to, and nothing unused.

A label to which nothing branches ends no basic block. Compilers put such labels between any two instructions,
to say in what follows which function has been inlined there.
"""

from __future__ import annotations

from collections.abc import Iterator

from verifier.machine.ptx.syntax import Instruction, Item, Label, Symbol

_UNUSED = frozenset(
    {
        "mov",
        "neg",
        "abs",
        "add",
        "sub",
        "mul",
        "mad",
        "fma",
        "div",
        "rcp",
        "sqrt",
        "rsqrt",
        "ex2",
        "lg2",
        "tanh",
    }
    | {"min", "max", "cvt", "selp", "setp", "and", "or", "xor", "not", "shl", "shr", "cvta", "prmt"}
)
"""Instructions that do nothing but write registers."""


def straightened(items: list[Item], products: set[str]) -> list[Item]:
    """Return the text without what leaves a basic block whole, and what uses a product and is not used.

    products: the registers of products. Where there is none, nothing is fused, and the text is left as it is.
    """
    if not products:
        return items
    using = _made_of(items, products)
    before = -1
    while before != len(items):
        before = len(items)
        items = list(_without_labels(list(_without_jumps(items))))
        items = list(_without_unused(items, using))
    return items


def _without_jumps(items: list[Item]) -> Iterator[Item]:
    """Leave out branches to the instruction that comes next anyway."""
    ahead = set[str]()
    kept = list[Item]()
    for item in reversed(items):
        if isinstance(item, Label):
            ahead.add(item.name)
        elif item.parts[0] == "bra" and len(item.operands) == 1 and _names(item) <= ahead:
            continue
        else:
            ahead = set()
        kept.append(item)
    yield from reversed(kept)


def _without_labels(items: list[Item]) -> Iterator[Item]:
    named = set[str]().union(*(_names(item) for item in items if isinstance(item, Instruction)))
    for item in items:
        if not isinstance(item, Label) or item.name in named:
            yield item


def _without_unused(items: list[Item], using: set[str]) -> Iterator[Item]:
    read = {name for item in items if isinstance(item, Instruction) for name in item.read}
    for item in items:
        unused = (
            isinstance(item, Instruction)
            and item.parts[0] in _UNUSED
            and not using.isdisjoint(item.read)
            and bool(item.written)
            and read.isdisjoint(item.written)
        )
        if not unused:
            yield item


def _made_of(items: list[Item], products: set[str]) -> set[str]:
    """Return the registers of products and of what is computed of them."""
    found, before = set(products), -1
    while before != len(found):
        before = len(found)
        for item in items:
            if isinstance(item, Instruction) and item.parts[0] in _UNUSED and not found.isdisjoint(item.read):
                found.update(item.written)
    return found


def _names(item: Instruction) -> set[str]:
    return {operand.name for operand in item.operands if isinstance(operand, Symbol)}
