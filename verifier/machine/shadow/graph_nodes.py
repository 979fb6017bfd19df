"""The nodes of a recorded expression graph, as they were computed, and their evaluation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from verifier.machine.operations.operation import DTYPE
from verifier.machine.operations.resolve import resolve
from verifier.machine.ptx.syntax import BITS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from verifier.machine.arithmetic.approximation import Approximation
    from verifier.machine.arithmetic.numerics import Array

_TORCH = {
    "torch.add": "add.rn", "torch.sub": "sub.rn", "torch.mul": "mul.rn", "torch.div": "div.rn",
    "torch.neg": "neg", "torch.sum": "add.rn",
    "torch.to.f32": "cvt", "torch.to.f16": "cvt.rn", "torch.to.bf16": "cvt.rn",
}  # fmt: skip
"""What torch's operations are among the machine's: on single precision, and conversions from and to it."""


NUMBER_BITS = 56
"""Bits of a number of a node: above them a code says what of it is meant (`node_codes`)."""
_NUMBER = (1 << NUMBER_BITS) - 1
MOST_OPERANDS = 3
"""Operands that a row of the table has room for."""


@dataclass(eq=False, slots=True)
class Row:
    """Nodes of one operation that were made together: `count` of them, from number `first` on.

    operands: node numbers, an array for each. value: bits of literals, element numbers of inputs. line: of
    the user's source as file:line, "" where none is known.
    """

    name: str
    first: int
    count: int
    operands: tuple[Array, ...] = ()
    value: Array | None = None
    line: str = ""


class Columns(TypedDict):
    """The nodes as columns: names and lines, and by node numbers of those, of operands, and the value."""

    names: tuple[str, ...]
    operation: np.ndarray[tuple[int, ...], np.dtype[np.int32]]
    operands: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    value: np.ndarray[tuple[int, ...], np.dtype[np.uint64]]
    line: np.ndarray[tuple[int, ...], np.dtype[np.int32]]
    lines: tuple[str, ...]


@dataclass(kw_only=True)
class Nodes:
    """All nodes of a run.

    checked: nodes with the bits that they had in the run. pinned: by its first node, the bits of what torch
    summed in an order of its own, of which the nodes say which numbers it has.
    """

    rows: list[Row] = field(default_factory=list)
    count: int = 0
    checked: list[tuple[Array, Array]] = field(default_factory=list)
    pinned: dict[int, Array] = field(default_factory=dict)

    def add(
        self,
        name: str,
        shape: tuple[int, ...],
        operands: tuple[Array, ...] = (),
        value: Array | None = None,
        line: str = "",
    ) -> Array:
        """Make a node for each place of a shape; return their numbers in that shape: see `append`."""
        first = self.append(name, shape, operands, value, line)
        return np.arange(first, self.count, dtype=np.int64).reshape(shape)

    def append(
        self,
        name: str,
        shape: tuple[int, ...],
        operands: Sequence[Array] = (),
        value: Array | None = None,
        line: str = "",
    ) -> int:
        """Make a node for each place of a shape; return the first number.

        operands: numbers of nodes, copied; what stands above `NUMBER_BITS` of them is left out.
        """
        first, self.count = self.count, self.count + math.prod(shape)
        whole = (one if one.shape == shape else np.broadcast_to(one, shape) for one in operands)
        # Wide rows have many nodes: where they can, numbers have 32 bits.
        narrow = self.count < 2**31
        flat = tuple((one.astype(np.int32) if narrow else one & _NUMBER).reshape(-1) for one in whole)
        held = None if value is None else np.array(np.broadcast_to(value, shape), dtype=np.uint64).reshape(-1)
        self.rows.append(Row(name, first, self.count - first, flat, held, line))
        return first

    def unordered_sum(self, terms: Array, bits: Array, total: Array) -> Array:
        """Make the nodes of sums over the first axis of terms, in an order that is not known.

        bits, total: what the terms and the sums were in the run.
        """
        self.checked.append((terms, bits))
        made: Array = terms[0]
        for term in terms[1:]:
            made = self.add("torch.sum.f32", made.shape, (made, term))
        if len(terms) > 1 and made.size:
            self.pinned[int(made.ravel()[0])] = total.reshape(-1)
        return made

    def columns(self) -> Columns:
        """Give names, operation, operands (n, 3), -1 for none, value, line and lines.

        What has more operands than there is room for is unknown.
        """
        known = {row.name: row.name for row in self.rows}
        known |= {row.name: f"unknown:{row.name}" for row in self.rows if len(row.operands) > MOST_OPERANDS}
        names = list(dict.fromkeys(known.values()))
        lines = list(dict.fromkeys(("", *(row.line for row in self.rows))))
        name_of, line_of = ({w: n for n, w in enumerate(words)} for words in (names, lines))
        operation, line = np.zeros(self.count, dtype=np.int32), np.zeros(self.count, dtype=np.int32)
        operands = np.full((self.count, MOST_OPERANDS), -1, dtype=np.int64)
        value = np.zeros(self.count, dtype=np.uint64)
        for row in self.rows:
            place = slice(row.first, row.first + row.count)
            operation[place], line[place] = name_of[known[row.name]], line_of[row.line]
            for number, column in enumerate(row.operands if len(row.operands) <= MOST_OPERANDS else ()):
                operands[place, number] = column
            if row.value is not None:
                value[place] = row.value
        return {
            "names": tuple(names),
            "operation": operation,
            "operands": operands,
            "value": value,
            "line": line,
            "lines": tuple(lines),
        }

    def evaluate(
        self, inputs: Mapping[str, Array], model: Approximation, *, pinned: bool = False
    ) -> tuple[Array, Array]:
        """Compute every node with the machine's own operations.

        inputs: bits of each argument's elements in row-major order. model: of approximate instructions.
        pinned: whether sums in an order that is not known are what they were in the run.
        Returns the bits of all nodes, uint64 (uint32 where none has more), and which of them are known.
        """
        # Names of operations and literals tell where they make numbers of 64 bits.
        wide = any("64" in row.name for row in self.rows) or any(
            int(held.max(initial=0)) >> 32 for held in inputs.values()
        )
        bits = np.zeros(self.count, dtype=np.uint64 if wide else np.uint32)
        known = np.ones(self.count, dtype=bool)
        with np.errstate(all="ignore"):
            for row in self.rows:
                place = slice(row.first, row.first + row.count)
                head, _, rest = row.name.partition(":")
                for column in row.operands:
                    known[place] &= known[column]
                if head in ("literal", "scalar"):
                    assert row.value is not None
                    bits[place] = row.value
                elif head == "input":
                    assert row.value is not None
                    bits[place] = inputs[rest][row.value.astype(np.int64)]
                elif head == "unknown":
                    known[place] = False
                elif pinned and row.first in self.pinned:
                    bits[place] = self.pinned[row.first]
                else:
                    bits[place] = computed(row.name, [bits[column] for column in row.operands], model)
        return bits, known


def computed(name: str, operands: list[Array], model: Approximation) -> Array:
    """Bits of the results of one operation."""
    if name == "ite":
        return np.where(operands[0] != 0, operands[1], operands[2])
    if name in ("and.pred", "or.pred", "xor.pred"):
        answer: Array = getattr(np, f"bitwise_{name[:-5]}")(*operands)
        return answer
    if name == "not.pred":
        return np.asarray(operands[0] ^ np.uint64(1))
    if name in ("to_bits.b32", "from_bits.f32"):
        return operands[0]
    if name.startswith("torch."):
        head = name[: name.rindex(".")]
        kind = f".{head.rpartition('.')[2]}" if name.startswith("torch.to.") else ""
        name = f"{_TORCH[head]}{kind}{name[name.rindex('.') :]}"
    operation = resolve(name)
    assert operation is not None, name
    sources: list[object] = [_as(kind, x) for kind, x in zip(operation.sources, operands, strict=True)]
    if operation.model:
        sources.insert(0, model)
    return as_bits(np.asarray(operation.function(*sources)), operation.results[0])


def _as(kind: str, bits: Array) -> Array:
    if kind == "pred":
        answer: Array = bits != 0
        return answer
    return bits.astype(f"u{BITS[kind] // 8}").view(DTYPE[kind])


def as_bits(values: Array, kind: str) -> Array:
    """Bits of numbers of a format, as uint64; bfloat16 comes as bits."""
    if kind == "pred":
        return values.astype(np.uint64)
    found = np.ascontiguousarray(values, dtype=DTYPE[kind]).view(f"u{BITS[kind] // 8}").astype(np.uint64)
    return found.reshape(np.shape(values))  # which of one number is no axis
