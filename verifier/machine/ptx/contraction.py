"""What ptxas does to the PTX: multiplications and additions without `.rn` become fused operations.

The rules are those that ptxas 12 and 13 were seen to follow on small kernels: fusion stays within a basic
block (barriers do not end one), looks through `neg` and `mov`, goes across `div.full` (which is a product
with a reciprocal), and keeps a product whose other uses need it anyway.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from verifier.machine.ptx.syntax import Instruction, Item, Label, Operand, Register

_TYPES = frozenset({"f32", "f64", "f16", "bf16", "f16x2", "bf16x2", "f32x2"})


@dataclass(kw_only=True)
class _Product:
    """A multiplication or division that may be fused: where it stands, and the places that use it."""

    place: int
    instruction: Instruction
    negated: bool = False


def contract(items: list[Item], registers: dict[str, str]) -> list[Item]:
    """Fuse within each basic block; new temporaries are added to `registers`."""
    instructions = [i for i in items if isinstance(i, Instruction)]
    counts = Counter(name for i in instructions for name in i.written)
    result: list[Item] = []
    regions = _regions(items)
    everywhere = Counter(name for i in instructions for name in i.read)
    for region in regions:
        if isinstance(region, Label):
            result.append(region)
            continue
        inside = Counter(name for i in region for name in i.read)
        outside = frozenset(name for name in inside if everywhere[name] != inside[name])
        result += _fuse(region, counts, outside, registers)
    return result


def _regions(items: list[Item]) -> list[Label | list[Instruction]]:
    """Cut at labels and after branches only."""
    regions: list[Label | list[Instruction]] = []
    current: list[Instruction] = []
    for item in items:
        if isinstance(item, Label):
            regions += [current, item]
            current = []
            continue
        current.append(item)
        if item.parts[0] in ("bra", "ret", "exit"):
            regions.append(current)
            current = []
    return [*regions, current]


def is_product(instruction: Instruction) -> bool:
    """`mul` without a rounding modifier, or the approximate divisions; never guarded."""
    parts = set(instruction.parts[1:]) - {"ftz"}
    if instruction.guard is not None or instruction.parts[-1] not in _TYPES:
        return False
    if instruction.parts[0] == "mul":
        return parts == {instruction.parts[-1]}
    return instruction.parts[0] == "div" and parts in ({"full", "f32"}, {"approx", "f32"})


def is_sum(instruction: Instruction) -> bool:
    """`add` or `sub` without a rounding modifier."""
    parts = set(instruction.parts[1:]) - {"ftz", "sat"}
    return instruction.parts[0] in ("add", "sub") and parts == {instruction.parts[-1]} and parts <= _TYPES


def _fuse(
    items: list[Instruction], counts: Counter[str], outside: frozenset[str], registers: dict[str, str]
) -> list[Item]:
    """Choose the products that disappear and rewrite the sums that take them in."""
    products: dict[str, _Product] = {}
    for place, item in enumerate(items):
        _follow(place, item, products, counts)
    readers: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        for name in item.read:
            readers.setdefault(name, []).append(place)
    sums = _choose(items, products, readers, outside)
    result: list[Item] = []
    dead = {products[name].place for name in sums.values()}
    for place, item in enumerate(items):
        if place in sums:
            result += _fused(item, sums[place], products, registers)
        elif place not in dead:
            result.append(item)
    return _without_dead_moves(result, {n for n in products if products[n].place in dead})


def _follow(place: int, item: Instruction, products: dict[str, _Product], counts: Counter[str]) -> None:
    """Record a product, or a `neg` or `mov` of one, held in a register that is written once."""
    target = item.operands[0] if item.operands else None
    if not isinstance(target, Register) or counts[target.name] != 1:
        return
    if is_product(item) and all(_stable(o, counts) for o in item.operands[1:]):
        products[target.name] = _Product(place=place, instruction=item)
    elif item.parts[0] in ("neg", "mov") and item.guard is None and isinstance(item.operands[1], Register):
        origin = products.get(item.operands[1].name)
        if origin is not None and (item.parts[0] == "mov" or item.parts[-1] == origin.instruction.parts[-1]):
            flip = item.parts[0] == "neg"
            products[target.name] = replace(origin, negated=origin.negated ^ flip)


def _stable(operand: Operand, counts: Counter[str]) -> bool:
    """Operands that hold the same value at the sum as at the product."""
    return not isinstance(operand, Register) or counts[operand.name] <= 1


def _choose(
    items: list[Instruction],
    products: dict[str, _Product],
    readers: dict[str, list[int]],
    outside: frozenset[str],
) -> dict[int, str]:
    """Map each sum that is fused to the register of the product it takes in.

    First the products with a single use, the first operand before the second; then those all of whose uses
    are sums that are still free.
    """
    by_place: dict[int, set[str]] = {}
    for name, product in products.items():
        by_place.setdefault(product.place, set()).add(name)
    ends = {place: _final_uses(place, names, items, readers, outside) for place, names in by_place.items()}
    sums: dict[int, str] = {}
    blocked: set[int] = set()
    for single in (True, False):
        for place, item in enumerate(items):
            if place in sums or not is_sum(item):
                continue
            for operand in item.operands[1:]:
                if not isinstance(operand, Register) or operand.name not in products:
                    continue
                product = products[operand.name]
                final = ends[product.place]
                if final is None or product.place in blocked or (len(final) == 1) != single:
                    continue
                if not all(_accepts(items[use], product) and use not in sums for use in final):
                    continue
                _take(final, product.place, items, products, sums=sums, blocked=blocked)
                break
    return sums


def _final_uses(
    place: int,
    names: set[str],
    items: list[Instruction],
    readers: dict[str, list[int]],
    outside: frozenset[str],
) -> list[int] | None:
    """Places of the sums that use a product, through moves; None if anything else needs it."""
    final: list[int] = []
    for name in names:
        if name in outside:
            return None
        for use in readers.get(name, []):
            target = items[use].operands[0]
            if use != place and isinstance(target, Register) and target.name in names:
                continue
            if not is_sum(items[use]):
                return None
            final.append(use)
    return final if final and len(set(final)) == len(final) else None


def _accepts(item: Instruction, product: _Product) -> bool:
    """Whether a sum and a product agree in type and in flushing."""
    same = item.parts[-1] == product.instruction.parts[-1]
    return same and ("ftz" in item.parts) == ("ftz" in product.instruction.parts)


def _take(
    final: list[int],
    place: int,
    items: list[Instruction],
    products: dict[str, _Product],
    *,
    sums: dict[int, str],
    blocked: set[int],
) -> None:
    """Fuse a product into its sums; a product that is the other operand has to be computed."""
    for use in final:
        for operand in items[use].operands[1:]:
            if isinstance(operand, Register) and operand.name in products:
                if products[operand.name].place == place:
                    sums[use] = operand.name
                else:
                    blocked.add(products[operand.name].place)


def _fused(
    item: Instruction, name: str, products: dict[str, _Product], registers: dict[str, str]
) -> list[Item]:
    """Give `a*b + c` as one instruction, with the signs of `sub` and `neg` put on a or c."""
    product = products[name]
    target, first, second = item.operands
    is_first = isinstance(first, Register) and first.name == name
    addend = second if is_first else first
    subtract = item.parts[0] == "sub"
    flip_product = product.negated ^ (subtract and not is_first)
    flip_addend = subtract and is_first
    kind = item.parts[-1]
    a, b = product.instruction.operands[1:]
    extra: list[Item] = []
    if flip_product:
        a = _negated(a, kind, item, registers, extra)
    if flip_addend:
        addend = _negated(addend, kind, item, registers, extra)
    modifiers = "".join(f".{p}" for p in ("ftz", "sat") if p in item.parts)
    head = "divfma.full" if product.instruction.parts[0] == "div" else "fma.rn"
    fused = replace(item, opcode=f"{head}{modifiers}.{kind}", operands=(target, a, b, addend))
    return [*extra, fused]


def _negated(
    operand: Operand, kind: str, item: Instruction, registers: dict[str, str], extra: list[Item]
) -> Operand:
    """Put a `neg` before the fused instruction."""
    width = {"f64": "b64", "f32x2": "b64", "f16": "b16", "bf16": "b16"}.get(kind, "b32")
    name = f"%neg{len(registers)}"
    registers[name] = width
    extra.append(
        Instruction(
            opcode=f"neg.{kind}",
            operands=(Register(name), operand),
            line=item.line,
            location=item.location,
            guard=None,
        )
    )
    return Register(name)


def _without_dead_moves(items: list[Item], dead: set[str]) -> list[Item]:
    """Drop `neg` and `mov` of products that no longer exist."""
    return [
        item
        for item in items
        if not (
            isinstance(item, Instruction)
            and item.parts[0] in ("neg", "mov")
            and item.operands
            and isinstance(item.operands[0], Register)
            and item.operands[0].name in dead
        )
    ]
