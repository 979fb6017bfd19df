"""Expressions of emitted code: names of registers, constants and operands in either form."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from verifier.machine.execute.findings import UnsupportedInstruction
from verifier.machine.operations.operation import DTYPE
from verifier.machine.ptx.syntax import BITS, Address, Immediate, Operand, Register, Sink, Special, Symbol
from verifier.machine.translate.uniformity import (
    FULL,
    OF_A_BLOCK,
    OF_A_THREAD,
    PER_BLOCK,
    PER_THREAD,
    SAME,
    RegisterShapes,
)

if TYPE_CHECKING:
    from verifier.machine.operations.operation import Operation
    from verifier.machine.ptx.basic_blocks import Program
    from verifier.machine.ptx.syntax import Instruction

_SUBSET = {FULL: "[ix]", PER_THREAD: "[it]", PER_BLOCK: "[ib]", SAME: ""}


class ShadowEmitter(Protocol):
    """Adds the lines that keep the shadow of every register to the emitted code."""

    def allocation(self, shape: int, tags: bool, exposed: bool) -> str:
        """Give the expression that allocates a shadow register of a shape class."""
        ...

    def before(self, writer: Writer, instruction: Instruction) -> None:
        """Look at an instruction before it executes."""

    def follows(self, instruction: Instruction) -> bool:
        """Whether there is anything to write for an operation without side effects."""
        ...

    def broken(self) -> tuple[Instruction, ...]:
        """Give the instructions that the shadow cannot follow."""
        ...

    def pure(self, writer: Writer, instruction: Instruction, operation: Operation) -> None:
        """After the results are in `v0`, `v1`, and before they are assigned."""

    def move(self, writer: Writer, instruction: Instruction, kind: str) -> None:
        """Follow registers packed, unpacked, loaded, stored or shuffled: `kind` says which."""

    def matrix(self, writer: Writer, item: Operand, half: int, loading: bool) -> None:
        """Follow one half-word of `ldmatrix` or `stmatrix`, after its access."""


class UnknownName(LookupError):  # noqa: N818 - it says what, and where it is raised says the rest
    """A name in an operand that stands for nothing the machine has an address for."""


@dataclass(kw_only=True)
class Code:
    """Names that emitted code uses: register views, constants and helper functions."""

    program: Program
    shapes: RegisterShapes
    names: dict[str, str] = field(default_factory=dict)
    views: set[tuple[str, str]] = field(default_factory=set)
    constants: dict[str, object] = field(default_factory=dict)
    objects: dict[int, str] = field(default_factory=dict)
    lazy: dict[str, str] = field(default_factory=dict)
    shadows: dict[str, tuple[str, bool]] = field(default_factory=dict)

    @cached_property
    def parameters(self) -> dict[str, int]:
        """Bytes from the start of the kernel's parameters to each, by name."""
        return self.program.kernel.parameter_offsets()

    def register(self, name: str) -> str:
        """Python name of a PTX register."""
        found = self.names.get(name)
        if found is None:
            clean = re.sub(r"\W", "_", name.lstrip("%"))
            found = self.names[name] = f"R{len(self.names)}_{clean}"
        return found

    def view(self, name: str, dtype: str) -> str:
        """Name of a register seen as a numpy type."""
        self.views.add((name, dtype))
        return f"{self.register(name)}_{dtype.replace('?', 'p')}"

    def constant(self, value: object) -> str:
        """Name of a Python object that emitted code needs."""
        if isinstance(value, np.ndarray):
            key = f"C_{value.dtype.str[1:].replace('?', 'b')}_{value.tobytes().hex()}_{value.ndim}"
            self.constants.setdefault(key, value)
            return key
        key = self.objects.get(id(value), "")
        if not key:  # numbered: what another process wrote of the same kernel has the same names
            key = self.objects[id(value)] = f"F_{len(self.objects)}"
            self.constants[key] = value
        return key

    def once_a_wave(self, expression: str) -> str:
        """Name of something computed once when the wave starts."""
        return self.lazy.setdefault(expression, f"L{len(self.lazy)}")

    def width(self, register: str) -> int:
        """Bits of a register."""
        return BITS[self.program.registers[register]]

    def symbol(self, name: str, offset: int, dtype: str) -> str:
        """Name of a variable's address, known when the wave starts.

        Raises UnknownName if nothing of that name has one.
        """
        program = self.program
        if name not in program.variables and name not in program.module.variables:
            raise UnknownName(_unknown(name, program))
        return self.once_a_wave(f"wave.symbol({name!r}, {offset}, {dtype!r})")


class Writer:
    """Writes one instruction in one of the two forms."""

    def __init__(self, code: Code, *, part: bool, shadow_emitter: ShadowEmitter | None = None) -> None:
        """`part`: for the lanes in `ix` only; else for all."""
        self.code, self.part, self.shadow_emitter = code, part, shadow_emitter
        self.lines: list[str] = []
        self.needs: set[str] = set()
        self.narrow = False
        self.one_block = False
        self.site = 0

    def add(self, line: str) -> None:
        """Append a line."""
        self.lines.append(line)

    def refuse(self, instruction: Instruction, reason: str = "") -> UnsupportedInstruction:
        """Name what is not executed."""
        kernel, where = self.code.program.kernel.name, instruction.location
        return UnsupportedInstruction(instruction.opcode, kernel, instruction.line, reason, where)

    def is_narrow(self, operands: tuple[Operand, ...]) -> bool:
        """Whether a destination has one value for several lanes: then it is computed for all at once."""
        registers = [o for o in operands if isinstance(o, Register)]
        return self.part and bool(registers) and self.code.shapes.of(registers[0].name) != FULL

    @property
    def group(self) -> str:
        """Expression of the group that executes; one block stands for all where all have the same values."""
        if self.one_block:
            return "everyone.one"
        return "g" if self.part and not self.narrow else "everyone"

    def read(self, name: str, dtype: str) -> str:
        """Expression for a register's value in the lanes of this form."""
        base = self.code.view(name, dtype)
        if not self.part or self.narrow:
            return base
        subset = _SUBSET[self.code.shapes.of(name)]
        if subset:
            self.needs.add(subset[1:-1])
        return f"{base}_flat{subset}"

    def source(self, operand: Operand, kind: str) -> str:
        """Expression of an operand as a PTX type."""
        dtype = DTYPE[kind]
        if isinstance(operand, Register):
            return self.register_source(operand, kind, dtype)
        if isinstance(operand, Immediate):
            return self.code.constant(immediate(operand, kind))
        if isinstance(operand, Special):
            return self.special(operand.name, dtype)
        if isinstance(operand, Symbol):
            return self.code.symbol(operand.name, operand.offset, dtype)
        raise TypeError(f"operand {operand}")

    def register_source(self, operand: Register, kind: str, dtype: str) -> str:
        """Expression of a register; wider registers are truncated, narrower ones extended."""
        if kind == "pred":
            name = self.read(operand.name, "?")
            return f"(~{name})" if operand.negated else name
        have, want = self.code.width(operand.name), BITS[kind]
        if have == 1:
            return f"{self.read(operand.name, '?')}.astype({dtype!r})"
        if have == want:
            return self.read(operand.name, dtype)
        if have > want and dtype[0] == "f":
            return f"{self.read(operand.name, f'u{have // 8}')}.astype('u{want // 8}').view({dtype!r})"
        signed = "i" if dtype[0] == "i" else "u"
        return f"{self.read(operand.name, f'{signed}{have // 8}')}.astype({dtype!r})"

    def special(self, name: str, dtype: str) -> str:
        """Expression of a special register."""
        if "clock" in name or "timer" in name:
            return f"wave.tick({dtype!r})" if not self.part else f"wave.tick({dtype!r})[0]"
        # A view, not a copy: block numbers change from wave to wave.
        base = self.code.once_a_wave(f"wave.special({name!r})")
        base = f"{base}.view({dtype!r})" if dtype in ("u4", "i4", "f4") else f"{base}.astype({dtype!r})"
        if not self.part or self.narrow:
            return base
        if name.startswith(OF_A_THREAD):
            self.needs.add("it")
            return f"{base}[0][it]"
        if name.startswith(OF_A_BLOCK):
            self.needs.add("ib")
            return f"{base}[:, 0][ib]"
        return f"{base}[0]"

    def guard(self, instruction: Instruction) -> str | None:
        """Expression of the guard, or None."""
        return self.source(instruction.guard, "pred") if instruction.guard else None

    def assign(
        self, operand: Operand, kind: str, value: str, guard: str | None, *, cast: bool = False
    ) -> None:
        """Write a value to a destination, only where the guard holds; `cast`: whatever its type."""
        if isinstance(operand, Sink):
            return
        if not isinstance(operand, Register):
            raise TypeError(f"destination {operand}")
        dtype = self.destination_type(operand.name, kind)
        base = self.code.view(operand.name, dtype)
        if not self.part or self.narrow:
            where = f", where={guard}" if guard else ""
            where += ", casting='unsafe'" if cast else ""
            self.add(f"copyto({base}, {value}{where})")
            return
        self.needs.add("ix")
        if guard:
            value = f"where({guard}, {value}, {base}_flat[ix])"
        self.add(f"{base}_flat[ix] = {value}")

    def destination_type(self, register: str, kind: str) -> str:
        """View of a destination: its own width, signed if the value is, so that assignment extends."""
        have = self.code.width(register)
        if have == 1:
            return "?"
        if have == BITS[kind]:
            return DTYPE[kind]
        return f"{'i' if DTYPE[kind][0] == 'i' else 'u'}{have // 8}"


def _unknown(name: str, program: Program) -> str:
    """Say what an unknown name is."""
    if name.startswith("%envreg"):
        return f"{name}, as grid-wide synchronisation reads it"
    if name in program.module.functions:
        return f"the address of function {name}"
    if name in {parameter.name for parameter in program.kernel.parameters}:
        return f"the address of parameter {name}"
    return f"the special register {name}" if name.startswith("%") else f"the name {name}"


def immediate(operand: Immediate, kind: str) -> np.ndarray[Any, np.dtype[Any]]:
    """Give a literal as a 0-dimensional array of a PTX type."""
    dtype = np.dtype(DTYPE[kind])
    if kind == "pred":
        return np.array(bool(operand.value))
    width = dtype.itemsize
    if operand.kind == "f64" and kind in ("f32", "f16"):
        value = np.array(operand.value, dtype=np.uint64).view(np.float64)
        return value.astype(dtype)
    if operand.kind == "f32" and kind == "f64":
        return np.array(operand.value, dtype=np.uint32).view(np.float32).astype(np.float64)
    unsigned = np.array(operand.value & ((1 << 8 * width) - 1), dtype=f"u{width}")
    if operand.kind == "integer" and dtype.kind == "f" and kind != "f16":
        return np.array(operand.value, dtype=dtype)
    return unsigned.view(dtype)


def address_expression(writer: Writer, operand: Operand) -> str:
    """Address of a memory operand, offset included."""
    if not isinstance(operand, Address):
        raise TypeError(f"address {operand}")
    base = operand.base
    if isinstance(base, Symbol):
        shape = "1" if writer.part and not writer.narrow else "1, 1"
        found = writer.code.symbol(base.name, base.offset + operand.offset, "u8")
        return f"{found}.reshape({shape})"
    if isinstance(base, Immediate):
        return writer.code.constant(
            np.full((1,) if writer.part else (1, 1), base.value + operand.offset, dtype="u8")
        )
    width = writer.code.width(base.name)
    name = writer.read(base.name, f"u{width // 8}")
    if operand.offset == 0:
        return name
    wrapped = operand.offset & ((1 << width) - 1)
    return f"({name} + {writer.code.constant(np.array(wrapped, dtype=f'u{width // 8}'))})"
