"""Arrays of graph nodes that a simulation takes for numbers: it runs unchanged and leaves its expressions.

`verifier.bounds.variance` simulates its algorithms on float64 arrays by the operations of
`RoundedArithmetic`. Given `Symbols` in the place of data and `SymbolicArithmetic` in its place, the same code
appends a node for each rounded operation. Numbers that no data enter (counts, reciprocals of counts) stay
numbers until they meet a symbol, and are computed by `RoundedArithmetic` itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, cast

import numpy as np

from verifier.arithmetic.formats import FORMATS, Array, Format
from verifier.arithmetic.graph.constants import FULL_NAMES, encoded
from verifier.arithmetic.graph.graph import Builder, Ids, ids
from verifier.arithmetic.simulated import RoundedArithmetic
from verifier.arithmetic.trees.steps import Step
from verifier.arithmetic.trees.tree import Tree

SHORT_NAMES = {full: short for short, full in FULL_NAMES.items()}
"""The names that PTX has for formats."""

Larger = Literal["max", "choice"]
AxisIndex = int | slice | Ids | None
ArrayIndex = AxisIndex | tuple[AxisIndex, ...]


class Symbols:
    """An array of nodes of one format, which NumPy's indexing, broadcasting and choosing take for an array.

    What would compute without rounding (`a + b`, `np.sqrt(a)`) raises TypeError; the negative is exact.
    """

    def __init__(self, builder: Builder, held: Format, nodes: object) -> None:
        """Hold nodes of the builder's graph that are numbers of a format."""
        self.builder, self.held, self.nodes = builder, held, ids(nodes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.nodes.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.nodes.ndim

    def __len__(self) -> int:
        """Return the extent of the first axis."""
        return len(self.nodes)

    def __getitem__(self, index: ArrayIndex) -> Symbols:
        """Return some of the nodes."""
        return self.like(self.nodes[index])

    def __setitem__(self, index: ArrayIndex, values: object) -> None:
        """Put other nodes, or numbers, in the place of some."""
        self.nodes[index] = self.nodes_of(values)

    def copy(self) -> Symbols:
        """Return an array of the same nodes of which elements can be replaced."""
        return self.like(self.nodes.copy())

    def like(self, nodes: object) -> Symbols:
        """Return nodes of the same graph and format."""
        return Symbols(self.builder, self.held, nodes)

    def nodes_of(self, values: object) -> Ids:
        """Return the nodes of symbols, or literals for numbers, which the format must hold.

        Raises:
            ValueError: the format does not hold a number, or symbols are of another graph.
            TypeError: the symbols are of another format.

        """
        if isinstance(values, Symbols):
            if values.builder is not self.builder:
                raise ValueError("symbols of two graphs meet")
            if values.held.name != self.held.name:
                raise TypeError(f"symbols of {values.held.name} meet some of {self.held.name}")
            return values.nodes
        return literals(self.builder, self.held, values)

    def operation(self, name: str, *others: object) -> Symbols:
        """Return the nodes of an operation `name`, whose PTX name ends in the format, on this and others."""
        operands = (self.nodes, *(self.nodes_of(other) for other in others))
        return self.like(self.builder.append(f"{name}.{SHORT_NAMES[self.held.name]}", *operands))

    def __neg__(self) -> Symbols:
        """Return the negatives."""
        return self.operation("neg")

    __array_ufunc__ = None
    """NumPy's own operations round nothing: they must go through `RoundedArithmetic`."""

    def __array_function__(
        self, function: Callable[..., object], types: object, arguments: tuple[object, ...], options: object
    ) -> Symbols:
        """Take what only moves elements (broadcast_to, where, zeros_like); refuse the others."""
        del types  # of NumPy's protocol, which calls by position
        if function is np.broadcast_to and not options:
            return self.like(np.broadcast_to(self.nodes, cast("tuple[int, ...]", arguments[1])))
        if function is np.where and len(arguments) == 3 and not isinstance(arguments[0], Symbols):
            return self.like(np.where(np.asarray(arguments[0]), *map(self.nodes_of, arguments[1:])))
        if function is np.zeros_like:
            return self.like(np.broadcast_to(self.nodes_of(0.0), self.shape).copy())
        raise TypeError(f"{function.__name__} of symbols is not known")

    def __array__(self, *_: object, **__: object) -> Array:
        """Refuse to become numbers.

        Raises:
            TypeError: always.

        """
        raise TypeError("symbols are no numbers")


def literals(builder: Builder, held: Format, numbers: object) -> Ids:
    """Append a literal for each number, which the format must hold.

    Raises:
        ValueError: it does not.

    """
    values = np.asarray(numbers, dtype=np.float64)
    kept = RoundedArithmetic(format=held).of(values)
    if not np.array_equal(kept, values):
        raise ValueError(f"{held.name} does not hold {values[kept != values].ravel()[:1]}")
    short = SHORT_NAMES[held.name]
    return builder.append(f"literal:{short}", value=encoded(short, values))


@dataclass(frozen=True, kw_only=True)
class SymbolicArithmetic(RoundedArithmetic):
    """The operations of `RoundedArithmetic` on symbols, by the names that PTX has for them.

    named: the opcodes of "divide" and "square_root", where they are not rounded correctly
        ("div.full.f32"); numbers that meet in those become literals, since nobody knows the result.
    larger: how the larger of two is found: by `max`, or by a comparison and a choice.
    reads: gives the steps of a sum of terms (rows, n), read off compiled code; None: those declared.
    merged: the steps in which elements are merged, read off as well; None: those declared.
    """

    builder: Builder
    named: dict[str, str] = field(default_factory=dict)
    larger: Larger = "max"
    reads: Callable[[Ids, Tree], list[Step]] | None = None
    merged: tuple[Step, ...] | None = None

    def of(self, exact: Array) -> Array:
        """Round a number; a symbol is the result of an operation and hence rounded already."""
        return exact if _symbols(exact) else super().of(exact)

    def add(self, a: Array, b: Array) -> Array:
        """Return fl(a + b)."""
        return self._operation("add.rn", super().add, a, b)

    def subtract(self, a: Array, b: Array) -> Array:
        """Return fl(a - b)."""
        return self._operation("sub.rn", super().subtract, a, b)

    def multiply(self, a: Array, b: Array) -> Array:
        """Return fl(a * b)."""
        return self._operation("mul.rn", super().multiply, a, b)

    def multiply_add(self, a: Array, b: Array, c: Array) -> Array:
        """Return fl(a * b + c) with one rounding."""
        return self._operation("fma.rn", super().multiply_add, a, b, c)

    def divide(self, a: Array, b: Array) -> Array:
        """Return fl(a / b)."""
        return self._operation("div.rn", super().divide, a, b, key="divide")

    def square_root(self, a: Array) -> Array:
        """Return fl(sqrt(a))."""
        return self._operation("sqrt.rn", super().square_root, a, key="square_root")

    def maximum(self, a: Array, b: Array) -> Array:
        """Return the larger of two, by `max` or, as kernels keep NaN, by a comparison and a choice."""
        if not (_symbols(a) or _symbols(b)):
            return super().maximum(a, b)
        if self.larger == "max":
            return self._operation("max", super().maximum, a, b)
        first, second = self.nodes(a), self.nodes(b)
        less = self.builder.append(f"setp.lt.{SHORT_NAMES[self.format.name]}", first, second)
        return self.symbols(self.builder.append("ite", less, second, first))

    def order(self, tree: Tree, terms: Array) -> list[Step]:
        """Return the steps of a sum: as read off compiled code, or those of the declared tree."""
        return super().order(tree, terms) if self.reads is None else self.reads(self.nodes(terms), tree)

    def merge_order(self, tree: Tree, count: int) -> list[Step]:
        """Return the steps in which elements are merged: as read off compiled code, or those declared."""
        return super().merge_order(tree, count) if self.merged is None else list(self.merged)

    def cast(self, format: Format, a: Array) -> Array:
        """Return a value of this format rounded to another and held in this one again."""
        if not _symbols(a):
            return super().cast(format, a)
        narrow = converted(cast("Symbols", cast("object", a)), format)
        return cast("Array", converted(narrow, self.format))

    def read(self, a: Array) -> Array:
        """Return an input as an operation sees it."""
        if self.flush_to_zero:
            raise TypeError("symbols keep subnormal numbers")
        return a

    def symbols(self, nodes: object) -> Array:
        """Return nodes as the array of numbers that a simulation takes them for."""
        return cast("Array", Symbols(self.builder, self.format, nodes))

    def nodes(self, values: object) -> Ids:
        """Return the nodes of symbols, or literals for numbers."""
        return Symbols(self.builder, self.format, 0).nodes_of(values)

    def _operation(self, name: str, computed: Callable[..., Array], *operands: Array, key: str = "") -> Array:
        known = not any(map(_symbols, operands))
        if known and key not in self.named:
            return computed(*operands)
        full = self.named.get(key, f"{name}.{SHORT_NAMES[self.format.name]}")
        return self.symbols(self.builder.append(full, *map(self.nodes, operands)))


def _symbols(values: object) -> bool:
    return isinstance(values, Symbols)


def converted(values: Symbols, format: Format) -> Symbols:
    """Return values rounded to a narrower format, or held in a wider one."""
    source, result = SHORT_NAMES[values.held.name], SHORT_NAMES[format.name]
    if source == result:
        return values
    rounds = "" if format.holds(values.held) else ".rn"
    nodes = values.builder.append(f"cvt{rounds}.{result}.{source}", values.nodes)
    return Symbols(values.builder, FORMATS[format.name], nodes)
