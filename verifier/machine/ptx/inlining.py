"""Device functions put in the place of their calls: PTX calls without a stack."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from verifier.machine.execute.findings import UnsupportedInstruction
from verifier.machine.ptx.syntax import (
    Address,
    Instruction,
    Item,
    Label,
    Operand,
    Pair,
    Register,
    Symbol,
    Variable,
    Vector,
)

if TYPE_CHECKING:
    from verifier.machine.ptx.syntax import Function, Module


class Inliner:
    """Copies callee bodies into the caller under fresh names."""

    def __init__(self, module: Module, kernel: Function) -> None:
        """Start from a kernel of the module."""
        self.module, self.kernel = module, kernel
        self.registers = dict(kernel.registers)
        self.variables: dict[str, Variable] = {v.name: v for v in kernel.variables}
        self.inlined = 0

    def run(self) -> list[Item]:
        """Give the kernel's body with every call to a function of the module replaced."""
        return self.expand(self.kernel.body, (self.kernel.name,))

    def expand(self, body: tuple[Item, ...] | list[Item], stack: tuple[str, ...]) -> list[Item]:
        """Replace the calls of one body."""
        items: list[Item] = []
        for item in body:
            if not isinstance(item, Instruction) or item.parts[0] != "call":
                items.append(item)
                continue
            callee = self.module.functions.get(item.callee or "")
            if callee is None or not callee.body:
                items.append(item)  # of the CUDA runtime, or refused where it is reached
                continue
            if callee.name in stack:
                raise UnsupportedInstruction(
                    item.opcode, self.kernel.name, item.line, "recursive calls", item.location
                )
            items += self.copy(callee, item, stack)
        return items

    def copy(self, callee: Function, call: Instruction, stack: tuple[str, ...]) -> list[Item]:
        """Give the callee's body, its parameters bound to the caller's argument variables."""
        self.inlined += 1
        suffix = f"#{self.inlined}"
        names = {p.name: a for p, a in zip(callee.parameters, call.arguments, strict=False)}
        names |= {r.name: a for r, a in zip(callee.results, call.results, strict=False)}
        for variable in callee.variables:
            fresh = variable.name + (suffix if variable.space != "shared" else f"@{callee.name}")
            names[variable.name] = fresh
            self.variables[fresh] = replace(variable, name=fresh)
        for name, kind in callee.registers.items():
            self.registers[name + suffix] = kind
        labels = {item.name: item.name + suffix for item in callee.body if isinstance(item, Label)}
        end = f"return{suffix}"
        renamer = _Renamer(suffix, names, labels)
        items: list[Item] = [
            Label(labels[item.name]) if isinstance(item, Label) else renamer.instruction(item, end)
            for item in callee.body
        ]
        items.append(Label(end))
        if call.guard is not None:
            skip = f"skip{suffix}"
            guard = replace(call.guard, negated=not call.guard.negated)
            jump = Instruction(
                opcode="bra", operands=(Symbol(skip),), guard=guard, line=call.line, location=call.location
            )
            items = [jump, *items, Label(skip)]
        return self.expand(items, (*stack, callee.name))


class _Renamer:
    """Gives one copy of a function its own registers, variables and labels."""

    def __init__(self, suffix: str, names: dict[str, str], labels: dict[str, str]) -> None:
        self.suffix, self.names, self.labels = suffix, names, labels

    def instruction(self, item: Instruction, end: str) -> Instruction:
        guard = self.register(item.guard) if item.guard else None
        if item.parts[0] == "ret":
            return replace(item, opcode="bra", operands=(Symbol(end),), guard=guard)
        return replace(
            item,
            operands=tuple(self.operand(o) for o in item.operands),
            guard=guard,
            arguments=tuple(self.names.get(a, a) for a in item.arguments),
            results=tuple(self.names.get(r, r) for r in item.results),
        )

    def register(self, register: Register) -> Register:
        return replace(register, name=register.name + self.suffix)

    def operand(self, operand: Operand) -> Operand:
        if isinstance(operand, Register):
            return self.register(operand)
        if isinstance(operand, Symbol):
            name = self.labels.get(operand.name) or self.names.get(operand.name, operand.name)
            return replace(operand, name=name)
        if isinstance(operand, Vector):
            return Vector(tuple(self.operand(o) for o in operand.items))
        if isinstance(operand, Address):
            base = self.operand(operand.base)
            assert isinstance(base, Register | Symbol) or base is operand.base
            return replace(operand, base=base)
        if isinstance(operand, Pair):
            return Pair(self.operand(operand.first), self.operand(operand.second))
        return operand
