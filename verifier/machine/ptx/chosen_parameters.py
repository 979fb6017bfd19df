"""Kernel parameters that are read at an address which was chosen: `a if condition else b` of two arguments.

Compilers take the addresses of both, choose one, and load from it. Here an address is a number, the offset of
the parameter; each parameter that it may be is loaded, and the one that it is is chosen. So no more is asked
of the machine, and of all that follows values through it, than moves and selections.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from verifier.machine.ptx.syntax import BITS, Address, Immediate, Instruction, Item, Register, Symbol

_CHOOSES = frozenset({"mov", "selp", "cvt"})
"""Operations that give one of their operands unchanged, where the operands are addresses."""


def with_loads_of_each(
    items: list[Item], registers: dict[str, str], offsets: Mapping[str, int]
) -> list[Item]:
    """Replace loads from chosen addresses of parameters; new temporaries are added to `registers`.

    offsets: bytes from the start of the kernel's parameters to each. Nothing is replaced where an address is
    used for anything else: what that is is then refused where it is reached.
    """
    found = _Addresses(instructions=[i for i in items if isinstance(i, Instruction)], offsets=offsets)
    if not found.held or found.escape():
        return items
    result: list[Item] = []
    for item in items:
        result += found.replaced(item, registers) if isinstance(item, Instruction) else [item]
    return result


@dataclass(kw_only=True)
class _Addresses:
    """The registers that hold addresses of parameters, and which: numbers of bytes."""

    instructions: list[Instruction]
    offsets: Mapping[str, int]
    held: dict[str, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Follow the addresses from where they are taken."""
        readers: dict[str, list[Instruction]] = defaultdict(list)
        waiting = []
        for one in self.instructions:
            if one.parts[0] in _CHOOSES:
                for name in one.read:
                    readers[name].append(one)
                if self._taken(one):
                    waiting.append(one)
        while waiting:
            one = waiting.pop()
            for name in one.written:
                before = self.held.setdefault(name, set())
                more = self._of(one) - before
                if more:
                    before |= more
                    waiting += readers[name]

    def _taken(self, one: Instruction) -> list[int]:
        symbols = [o for o in one.operands[1:] if isinstance(o, Symbol) and o.name in self.offsets]
        return [self.offsets[o.name] + o.offset for o in symbols]

    def _of(self, one: Instruction) -> set[int]:
        given = [self.held.get(o.name, set()) for o in one.operands[1:] if isinstance(o, Register)]
        return set(self._taken(one)).union(*given)

    def escape(self) -> bool:
        """Whether an address is anything but chosen and loaded from, or something else takes its place."""
        return any(self._escapes(one) for one in self.instructions)

    def _escapes(self, one: Instruction) -> bool:
        chooses = one.parts[0] in _CHOOSES
        if any(name in self.held for name in one.written):
            values = one.operands[1:3] if one.parts[0] == "selp" else one.operands[1:2]
            return not chooses or not all(self._is_address(operand) for operand in values)
        read = [name for name in one.read if name in self.held]
        read += [o.name for o in one.operands if isinstance(o, Symbol) and o.name in self.offsets]
        return bool(read) and not self._loads(one)

    def _is_address(self, operand: object) -> bool:
        if isinstance(operand, Symbol):
            return operand.name in self.offsets
        return isinstance(operand, Register) and operand.name in self.held

    def _loads(self, one: Instruction) -> bool:
        if one.parts[0] != "ld" or "param" not in one.parts or not isinstance(one.operands[0], Register):
            return False
        base = one.operands[1].base if isinstance(one.operands[1], Address) else None
        return isinstance(base, Register) and one.guard is None

    def replaced(self, one: Instruction, registers: dict[str, str]) -> Iterator[Instruction]:
        """Yield what stands for an instruction: numbers for addresses, and loads of each for one of some."""
        if self._taken(one):
            operands = tuple(
                Immediate(self.offsets[o.name] + o.offset)
                if isinstance(o, Symbol) and o.name in self.offsets
                else o
                for o in one.operands
            )
            yield replace(one, operands=operands)
            return
        names = [name for name in one.read if name in self.held]
        if not names or not self._loads(one):
            yield one
            return
        target, address = one.operands
        assert isinstance(target, Register)
        assert isinstance(address, Address)
        assert isinstance(address.base, Register)
        yield from self._chosen(one, target, address.base, address.offset, registers)

    def _chosen(
        self, one: Instruction, target: Register, base: Register, beyond: int, registers: dict[str, str]
    ) -> Iterator[Instruction]:
        kind, width = registers[target.name], BITS[registers[base.name]]
        word = kind if kind[0] in "bf" else f"b{BITS[kind]}"
        first, *others = sorted(self.held[base.name])
        so_far = self._temporary(kind, registers)
        yield replace(one, operands=(so_far, self._address(first + beyond)))
        for offset in others:
            other, is_it = self._temporary(kind, registers), self._temporary("pred", registers)
            yield replace(one, operands=(other, self._address(offset + beyond)))
            yield replace(one, opcode=f"setp.eq.b{width}", operands=(is_it, base, Immediate(offset)))
            chosen = self._temporary(kind, registers)
            yield replace(one, opcode=f"selp.{word}", operands=(chosen, other, so_far, is_it))
            so_far = chosen
        yield replace(one, opcode=f"mov.{word}", operands=(target, so_far))

    def _address(self, place: int) -> Address:
        """Return where a parameter lies: the last that begins there or before."""
        name = max((n for n, start in self.offsets.items() if start <= place), key=lambda n: self.offsets[n])
        return Address(base=Symbol(name), offset=place - self.offsets[name])

    @staticmethod
    def _temporary(kind: str, registers: dict[str, str]) -> Register:
        name = f"%chosen{len(registers)}"
        registers[name] = kind
        return Register(name)
