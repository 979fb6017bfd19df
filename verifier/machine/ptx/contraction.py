"""What ptxas does to the PTX: multiplications and additions without `.rn` become fused operations.

The rules are those that ptxas 12 and 13 were seen to follow on small kernels: fusion looks through `neg` and
`mov`, and `abs` of a square of float32, goes across `div.full` (a product with a reciprocal), and keeps
a product whose other uses need it anyway. It stays within a basic block (barriers do not end one), but for
products with a literal or with an argument of the kernel, which sums of any block take, in loops too, if they
are in each loop that the product is in. Labels to which nothing branches end no block (`straightened`). What
is written later to an operand's register, or to the product's own, makes no difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from verifier.machine.ptx.straightened import straightened
from verifier.machine.ptx.syntax import (
    Address,
    Immediate,
    Instruction,
    Item,
    Label,
    Operand,
    Pair,
    Register,
    Symbol,
    Vector,
)

_WIDTHS = {"f64": "b64", "f32x2": "b64", "f16": "b16", "bf16": "b16"}
_TYPES = frozenset({"f32", "f64", "f16", "bf16", "f16x2", "bf16x2", "f32x2"})


@dataclass(kw_only=True)
class _Product:
    """A multiplication or division that may be fused: where it stands, and the places that use it.

    magnitude: what is held is the magnitude of a square, which no sum takes that subtracts it.
    """

    place: int
    instruction: Instruction
    negated: bool = False
    magnitude: bool = False


def contract(items: list[Item], registers: dict[str, str]) -> list[Item]:
    """Fuse within each basic block, then across blocks; new temporaries are added to `registers`."""
    products = (item for item in items if isinstance(item, Instruction) and is_product(item))
    straight = straightened(items, {name for product in products for name in product.written})
    regions = [
        region if isinstance(region, Label) else _written_once(region, registers)
        for region in _regions(straight)
    ]
    instructions = [i for region in regions if not isinstance(region, Label) for i in region]
    counts = Counter(name for i in instructions for name in i.written)
    result: list[Item] = []
    everywhere = Counter(name for i in instructions for name in i.read)
    for region in regions:
        if isinstance(region, Label):
            result.append(region)
            continue
        inside = Counter(name for i in region for name in i.read)
        outside = frozenset(name for name in inside if everywhere[name] != inside[name])
        result += _fuse(list(region), counts, outside, registers)
    return _fuse(result, counts, frozenset(), registers, constants=_constants(instructions, counts))


def _written_once(region: list[Instruction], registers: dict[str, str]) -> list[Instruction]:
    """Give what a register holds until it is overwritten in the same block a register of its own."""
    last = {name: place for place, i in enumerate(region) if i.guard is None for name in i.written}
    held, result = dict[str, str](), list[Instruction]()
    for place, item in enumerate(region):
        names = {name: held[name] for name in item.read if name in held}
        if item.guard is not None:  # what was there may stay
            names |= {name: held[name] for name in item.written if name in held}
            result.append(_renamed(item, names, target=names))
            continue
        target = item.operands[0] if item.operands else None
        for name in item.written:
            held.pop(name, None)
        if isinstance(target, Register) and item.written == (target.name,) and last[target.name] > place:
            own = held[target.name] = f"{target.name}@w{len(registers)}"
            registers[own] = registers[target.name]
        result.append(_renamed(item, names, target=held if item.written else names))
    return result


def _renamed(item: Instruction, names: Mapping[str, str], *, target: Mapping[str, str]) -> Instruction:
    """Return an instruction with other registers; target: those of its first operand."""
    guard = item.guard
    if guard is not None and guard.name in names:
        guard = replace(guard, name=names[guard.name])
    operands = tuple(_named(o, names if place else target) for place, o in enumerate(item.operands))
    same = guard == item.guard and operands == item.operands
    return item if same else replace(item, guard=guard, operands=operands)


def _named(operand: Operand, names: Mapping[str, str]) -> Operand:
    if isinstance(operand, Register):
        return replace(operand, name=names.get(operand.name, operand.name))
    if isinstance(operand, Vector):
        return Vector(items=tuple(_named(one, names) for one in operand.items))
    if isinstance(operand, Pair):
        return Pair(first=_named(operand.first, names), second=_named(operand.second, names))
    if isinstance(operand, Address) and isinstance(operand.base, Register):
        base = operand.base
        return replace(operand, base=replace(base, name=names.get(base.name, base.name)))
    return operand


def _constants(instructions: list[Instruction], counts: Counter[str]) -> frozenset[str]:
    """Return the registers that hold a literal or an argument of the kernel, perhaps moved or negated."""
    found = set[str]()
    before = -1
    while before != len(found):
        before = len(found)
        for one in instructions:
            if one.guard is not None or len(one.written) != 1 or counts[one.written[0]] != 1:
                continue
            argument = one.parts[:2] == ("ld", "param")
            moved = one.parts[0] in ("mov", "neg", "abs") and _constant(one.operands[1], found)
            if argument or moved:
                found.add(one.written[0])
    return frozenset(found)


def _constant(operand: Operand, known: Collection[str]) -> bool:
    return isinstance(operand, Immediate) or (isinstance(operand, Register) and operand.name in known)


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
    items: list[Item],
    counts: Counter[str],
    outside: frozenset[str],
    registers: dict[str, str],
    *,
    constants: frozenset[str] | None = None,
) -> list[Item]:
    """Choose the products that disappear and rewrite the sums that take them in.

    constants: of several blocks only products with one of these registers, or with a literal, are fused;
    None: the items are one block.
    """
    products: dict[str, _Product] = {}
    instructions = {place: item for place, item in enumerate(items) if isinstance(item, Instruction)}
    for place, item in instructions.items():
        if constants is None or not is_product(item) or _of_a_constant(item, constants):
            _follow(place, item, products, counts)
    readers: dict[str, list[int]] = {}
    for place, item in instructions.items():
        for name in item.read:
            readers.setdefault(name, []).append(place)
    loops = _loops(items) if constants is not None and products else []
    sums = _choose(instructions, products, readers, outside, loops)
    dead = {products[name].place for name in sums.values()}
    kept = {place: _kept(instructions[place], counts, registers) for place in dead}
    for name, product in products.items():
        if product.place in dead:
            products[name] = replace(product, instruction=kept[product.place][1])
    result: list[Item] = []
    for place, each in enumerate(items):
        new = [each]
        if place in sums:
            new = _fused(instructions[place], sums[place], products, registers)
        elif place in dead:
            new = kept[place][0]
        result += new
    return _without_dead_moves(result, {n for n in products if products[n].place in dead})


def _of_a_constant(product: Instruction, constants: frozenset[str]) -> bool:
    """Whether a factor is a literal or an argument, or a divisor a literal."""
    factors = product.operands[1:]
    if product.parts[0] == "div":
        return isinstance(factors[1], Immediate)
    return any(_constant(factor, constants) for factor in factors)


def _loops(items: list[Item]) -> list[tuple[int, int]]:
    """Return where loops begin and end: at a label, and at a later branch to it."""
    labels = {item.name: place for place, item in enumerate(items) if isinstance(item, Label)}
    return [
        (labels[target.name], place)
        for place, item in enumerate(items)
        if isinstance(item, Instruction) and item.parts[0] == "bra"
        for target in item.operands
        if isinstance(target, Symbol) and labels.get(target.name, place) < place
    ]


def _kept(
    product: Instruction, counts: Counter[str], registers: dict[str, str]
) -> tuple[list[Item], Instruction]:
    """Return moves that keep operands of a product which are written again, and what reads these."""
    moves, operands = list[Item](), list[Operand]()
    for operand in product.operands[1:]:
        if isinstance(operand, Register) and counts[operand.name] > 1:
            width = _WIDTHS.get(product.parts[-1], "b32")
            own = Register(f"%kept{len(registers)}")
            registers[own.name] = width
            moves.append(replace(product, opcode=f"mov.{width}", operands=(own, operand)))
            operands.append(own)
        else:
            operands.append(operand)
    return moves, replace(product, operands=(product.operands[0], *operands))


def _follow(place: int, item: Instruction, products: dict[str, _Product], counts: Counter[str]) -> None:
    """Record a product, a `neg` or `mov` of one, or the `abs` of a square, in a register written once."""
    target = item.operands[0] if item.operands else None
    if not isinstance(target, Register) or counts[target.name] != 1:
        return
    if is_product(item):
        products[target.name] = _Product(place=place, instruction=item)
    elif item.parts[0] in ("neg", "mov") and item.guard is None and isinstance(item.operands[1], Register):
        origin = products.get(item.operands[1].name)
        if origin is not None and (item.parts[0] == "mov" or item.parts[-1] == origin.instruction.parts[-1]):
            flip = item.parts[0] == "neg"
            if not (flip and origin.magnitude):
                products[target.name] = replace(origin, negated=origin.negated ^ flip)
    elif item.parts[0] == "abs" and item.guard is None and isinstance(item.operands[1], Register):
        origin = products.get(item.operands[1].name)
        if origin is not None and _is_square(origin.instruction, item):
            products[target.name] = replace(origin, negated=False, magnitude=True)


def _is_square(product: Instruction, magnitude: Instruction) -> bool:
    """Whether a product is a square in float32 that flushes as what takes its magnitude does."""
    first, second = product.operands[1:]
    same = product.parts[0] == "mul" and isinstance(first, Register) and first == second
    return same and product.parts[1:] == magnitude.parts[1:] and product.parts[-1] == "f32"


def _choose(
    items: dict[int, Instruction],
    products: dict[str, _Product],
    readers: dict[str, list[int]],
    outside: frozenset[str],
    loops: list[tuple[int, int]],
) -> dict[int, str]:
    """Map each sum that is fused to the register of the product it takes in.

    First the products with a single use, the first operand before the second; then those all of whose uses
    are sums that are still free. loops: no product leaves one of these.
    """
    by_place: dict[int, set[str]] = {}
    for name, product in products.items():
        by_place.setdefault(product.place, set()).add(name)
    ends = {place: _final_uses(place, names, items, readers, outside) for place, names in by_place.items()}
    sums: dict[int, str] = {}
    blocked: set[int] = set()
    for single in (True, False):
        for place, item in items.items():
            if place in sums or not is_sum(item):
                continue
            for operand in item.operands[1:]:
                if not isinstance(operand, Register) or operand.name not in products:
                    continue
                product = products[operand.name]
                final = ends[product.place]
                if final is None or product.place in blocked or (len(final) == 1) != single:
                    continue
                if not all(_accepts(items[use], product, products) and use not in sums for use in final):
                    continue
                around = [(first, last) for first, last in loops if first < product.place < last]
                if not all(first < use < last for first, last in around for use in final):
                    continue
                _take(final, product.place, items, products, sums=sums, blocked=blocked)
                break
    return sums


def _final_uses(
    place: int,
    names: set[str],
    items: dict[int, Instruction],
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


def _accepts(item: Instruction, product: _Product, products: Mapping[str, _Product]) -> bool:
    """Whether a sum and a product agree in type and in flushing, and it subtracts no magnitude."""
    last = item.operands[2]
    if item.parts[0] == "sub" and isinstance(last, Register) and last.name in products:
        held = products[last.name]
        if held.magnitude and held.place == product.place:
            return False
    same = item.parts[-1] == product.instruction.parts[-1]
    return same and ("ftz" in item.parts) == ("ftz" in product.instruction.parts)


def _take(
    final: list[int],
    place: int,
    items: dict[int, Instruction],
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
    width = _WIDTHS.get(kind, "b32")
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
    """Drop `neg`, `mov` and `abs` of products that no longer exist."""
    return [
        item
        for item in items
        if not (
            isinstance(item, Instruction)
            and item.parts[0] in ("neg", "mov", "abs")
            and item.operands
            and isinstance(item.operands[0], Register)
            and item.operands[0].name in dead
        )
    ]
