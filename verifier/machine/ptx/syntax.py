"""PTX text as records: modules, functions, instructions and operands."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.execute.findings import Location

# Width in bits of every fundamental type; packed types have the width of the register that holds them.
BITS = {
    **{f"{kind}{width}": width for kind in "bsuf" for width in (8, 16, 32, 64)},
    "b128": 128,
    "b1": 1,
    "bf16": 16,
    "f16x2": 32,
    "bf16x2": 32,
    "f32x2": 64,
    "e4m3x2": 16,
    "e5m2x2": 16,
    "pred": 1,
}


@dataclass(frozen=True)
class Register:
    """A virtual register; `negated` is the `!` before a predicate."""

    name: str
    negated: bool = False


@dataclass(frozen=True)
class Immediate:
    """A literal: an integer, or the bit pattern of a float32 or float64."""

    value: int
    kind: Literal["integer", "f32", "f64"] = "integer"


@dataclass(frozen=True)
class Special:
    """A read-only special register such as `%tid.x`."""

    name: str


@dataclass(frozen=True)
class Symbol:
    """The name of a variable or a function, used as its address."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Address:
    """A memory operand `[base + offset]`."""

    base: Register | Symbol | Immediate
    offset: int = 0


@dataclass(frozen=True)
class Vector:
    """A brace list `{a, b}`."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Sink:
    """The operand `_`: a result that nobody wants."""


@dataclass(frozen=True)
class Pair:
    """Two predicate results `p|q`."""

    first: Operand
    second: Operand


@dataclass(frozen=True)
class Unread:
    """An operand in a form that the machine does not know; its instruction cannot be executed."""

    text: str


Operand = Register | Immediate | Special | Symbol | Address | Vector | Sink | Pair | Unread


CARRY = "%cc"
"""The condition-code register, by the name that blocks give it."""
_WRITES_NONE = frozenset(
    {
        "st",
        "red",
        "bra",
        "ret",
        "exit",
        "call",
        "membar",
        "fence",
        "stmatrix",
        "trap",
        "cp",
        "nanosleep",
    }
)


_FOLLOWING = ("parts", "written", "read")


def registers_of(operand: Operand) -> tuple[str, ...]:
    """Names of the registers in an operand."""
    if isinstance(operand, Register):
        return (operand.name,)
    if isinstance(operand, Vector):
        return tuple(name for item in operand.items for name in registers_of(item))
    if isinstance(operand, Pair):
        return registers_of(operand.first) + registers_of(operand.second)
    if isinstance(operand, Address):
        return registers_of(operand.base)
    return ()


@cache
def _split(opcode: str) -> tuple[str, ...]:
    return tuple(opcode.split("."))


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One instruction with its guard, its line in the PTX and its line in the user's source."""

    opcode: str
    operands: tuple[Operand, ...]
    guard: Register | None = None
    line: int = 0
    location: Location | None = None
    callee: str | None = None
    arguments: tuple[str, ...] = ()
    results: tuple[str, ...] = ()

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The opcode split at its dots."""
        return _split(self.opcode)

    @cached_property
    def written(self) -> tuple[str, ...]:
        """The registers that it writes."""
        parts = self.parts
        if parts[0] in _WRITES_NONE or (parts[0] in ("bar", "barrier") and "red" not in parts):
            return ()
        # A first operand in memory is written there: `mbarrier.init [a], n`.
        in_memory = not self.operands or isinstance(self.operands[0], Address)
        first = () if in_memory else registers_of(self.operands[0])
        return (*first, CARRY) if "cc" in parts else first

    @cached_property
    def read(self) -> tuple[str, ...]:
        """The registers that it reads, its guard included."""
        found = [] if self.guard is None else [self.guard.name]
        for operand in self.operands[1 if self.written else 0 :]:
            found += registers_of(operand)
        if self.parts[0] in ("addc", "subc", "madc"):
            found.append(CARRY)
        return tuple(found)

    def __getstate__(self) -> dict[str, object]:
        """Leave out what follows from the rest."""
        return {name: value for name, value in vars(self).items() if name not in _FOLLOWING}

    def text(self) -> str:
        """Give the opcode with its guard, for messages."""
        if self.guard is None:
            return self.opcode
        return f"@{'!' if self.guard.negated else ''}{self.guard.name} {self.opcode}"


@dataclass(frozen=True)
class Label:
    """A branch target inside a function body."""

    name: str


Item = Instruction | Label


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A declared variable: its space, alignment, element type, size and initial bytes."""

    name: str
    space: str
    type: str
    alignment: int
    size: int
    initial: bytes | None = None
    references: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Function:
    """A kernel or a device function."""

    name: str
    is_kernel: bool
    parameters: tuple[Variable, ...]
    results: tuple[Variable, ...]
    registers: dict[str, str]
    variables: tuple[Variable, ...]
    body: tuple[Item, ...]
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def parameter_offsets(self) -> dict[str, int]:
        """Byte offset of each parameter in the launch buffer, in declaration order."""
        offsets: dict[str, int] = {}
        position = 0
        for parameter in self.parameters:
            position = -(-position // parameter.alignment) * parameter.alignment
            offsets[parameter.name] = position
            position += parameter.size
        return offsets


@dataclass(frozen=True, kw_only=True)
class Module:
    """A PTX translation unit."""

    version: tuple[int, int]
    target: str
    functions: dict[str, Function]
    variables: dict[str, Variable]
    text: str
    # Contents of `.global` variables, which live from launch to launch.
    data: dict[str, Array] = field(default_factory=dict, compare=False)

    @property
    def architecture(self) -> int:
        """Compute capability as an integer: 90 for `sm_90a`."""
        return int("".join(letter for letter in self.target if letter.isdigit()))
