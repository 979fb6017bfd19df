"""Numbers of a form that are symbols: an op's form, run on them, leaves the expressions of its results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from verifier.arithmetic.formats import FORMATS, Array, Contraction, DivideByN
from verifier.arithmetic.graph.graph import Ids
from verifier.arithmetic.graph.opcodes import UNORDERED_SUM
from verifier.arithmetic.graph.order_read import Unordered
from verifier.arithmetic.graph.symbols import SHORT_NAMES, Larger, SymbolicArithmetic
from verifier.arithmetic.trees.tree import Tree, of_all
from verifier.bounds.variance import Reduction, SquareOrder
from verifier.ops.rows.twin_orders import Orders
from verifier.records.subject import Trees

QUOTIENTS = ("div.rn", "div.full")
"""Opcodes of a quotient: a theorem counts the errors of either."""
RECIPROCAL = "rcp.rn"
"""The opcode of a reciprocal that is rounded once, as a quotient of 1 is."""
TANGENT = "tanh.libdevice"
"""The function that a hyperbolic tangent is, since no other is known in graphs."""


class NoTwinError(ValueError):
    """A declaration, or a result, of which no expressions can be made."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """What a declaration leaves to the compiled code.

    divide: the opcode of a quotient. power: that of 2**x, or the name of a function e**x; logarithm: the name
    of a function (`verifier.arithmetic.graph.device_functions`). root: the opcodes of 1 / sqrt(v), in order.
    larger: how a clamp is written. squares: how merges of parts write what they add to the squares.
    fuses: whether products of the form are fused into the sums that use them. contracted: the code is
    compared with the way up to fused products.
    """

    divide_by_n: DivideByN = "division"
    mean_contraction: Contraction = "none"
    clamp: bool = False
    larger: Larger = "max"
    divide: str = "div.rn"
    root: tuple[str, ...] = ("sqrt.rn", "div.rn")
    power: str = "ex2.approx"
    logarithm: str = "log.cuda"
    fuses: bool = False
    contracted: bool = False
    squares: SquareOrder = "delta_first"


@dataclass(frozen=True, kw_only=True)
class TwinValue:
    """A value of the form; `product` is the pair that it was just multiplied from."""

    numbers: TwinNumbers
    array: Array
    product: tuple[Array, Array] | None = None

    def __add__(self, other: TwinValue) -> TwinValue:
        """Return the rounded sum."""
        return self.numbers.added(self, other)

    def __sub__(self, other: TwinValue) -> TwinValue:
        """Return the rounded difference."""
        product = self.product or other.product
        if self.numbers.way.fuses and product:
            return self.numbers.added(self, -other)
        array = self.numbers.rounded.subtract(self.array, other.array)
        return self.numbers.not_fused(array) if product else self.numbers.plain(array)

    def __neg__(self) -> TwinValue:
        """Return the negative."""
        pair = None if self.product is None else (-self.product[0], self.product[1])
        return replace(self, array=-self.array, product=pair)

    def __mul__(self, other: TwinValue) -> TwinValue:
        """Return the rounded product."""
        array = self.numbers.rounded.multiply(self.array, other.array)
        return replace(self, array=array, product=(self.array, other.array))

    def __truediv__(self, other: TwinValue) -> TwinValue:
        """Return the rounded quotient."""
        return self.numbers.quotient(self, other)


@dataclass(frozen=True, kw_only=True)
class UnfusedSums:
    """Nodes of sums into which compiled code may fuse a product, where a twin does not.

    by_choice: another way would. always: those of a row's or a column's terms, into which none does.
    """

    by_choice: list[Ids] = field(default_factory=list)
    always: list[Ids] = field(default_factory=list)


@dataclass(kw_only=True)
class TwinNumbers:
    """`verifier.arithmetic.abstract_number.Numbers` on symbols."""

    rounded: SymbolicArithmetic
    way: Way
    rows: int
    columns: int
    dtypes: Mapping[str, str]
    reduction: Reduction
    mixes: bool
    trees: Trees
    parameter: Ids | str
    orders: Orders
    online: Callable[[TwinNumbers, Ids], TwinValue]
    computed: tuple[TwinValue, TwinValue] | None = None
    saved: tuple[TwinValue, TwinValue] | None = None
    parts: tuple[TwinValue, TwinValue] | None = None
    spread: Array | None = None
    backward: bool = False
    unfused: UnfusedSums = field(default_factory=UnfusedSums)

    def plain(self, array: Array) -> TwinValue:
        """Return a value that is no product."""
        return TwinValue(numbers=self, array=array)

    def added(self, a: TwinValue, b: TwinValue) -> TwinValue:
        """Return a + b; a product is fused into it, if products are fused."""
        product, other = (b, a) if b.product is not None else (a, b)
        if product.product is not None and self.way.fuses:
            return self.plain(self.rounded.multiply_add(*product.product, other.array))
        array = self.rounded.add(a.array, b.array)
        return self.plain(array) if product.product is None else self.not_fused(array)

    def not_fused(self, array: Array) -> TwinValue:
        """Return a sum into which no product is fused, though one could be."""
        self.unfused.by_choice.append(self.rounded.nodes(array))
        return self.plain(array)

    def quotient(self, a: TwinValue, b: TwinValue) -> TwinValue:
        """Return a / b: by the opcode of the way, or by another that the code has there."""
        chosen = self.plain(self.rounded.divide(a.array, b.array))
        nodes = self.rounded.nodes(a.array), self.rounded.nodes(b.array)
        append, held = self.rounded.builder.append, SHORT_NAMES[self.rounded.format.name]
        others = [append(f"{name}.{held}", *nodes) for name in QUOTIENTS if name != self.way.divide]
        return self.either(chosen, *(self.plain(self.rounded.symbols(one)) for one in others))

    def moments(self, _x: TwinValue, /) -> tuple[TwinValue, TwinValue]:
        """Return mean and rstd."""
        if self.computed is None:
            raise NoTwinError("statistics that are not computed from the row have no twin yet")
        return self.computed

    def mean_parts(self, _x: TwinValue, /) -> tuple[TwinValue, TwinValue]:
        """Return the two numbers that are kept of the mean."""
        if self.parts is None:
            raise NoTwinError("the declared variance algorithm does not keep the mean as two numbers")
        return self.parts

    def stepped_moments(self, x: TwinValue) -> tuple[TwinValue, TwinValue]:
        """Return `moments`."""
        return self.moments(x)

    def saved_moments(self, _x: TwinValue, /) -> tuple[TwinValue, TwinValue]:
        """Return mean and rstd as the backward pass reads them."""
        if self.saved is None:
            raise NoTwinError("statistics that are not computed from the row have no twin yet")
        return self.saved

    def constant(self, number: float) -> TwinValue:
        """Return a constant as the format holds it."""
        return self.plain(self.rounded.of(np.full((1, 1), number)))

    def count(self) -> TwinValue:
        """Return the number of columns."""
        return self.constant(float(self.columns))

    def sum(self, value: TwinValue) -> TwinValue:
        """Return the sum over each row."""
        tree = self.trees.row_gradients if self.backward else self.trees.statistics
        return self.plain(self._sums(self._full(value), tree)[:, None])

    def mean(self, value: TwinValue) -> TwinValue:
        """Return the sum over each row divided by the number of columns."""
        if self.way.divide_by_n == "division":
            return self.sum(value) / self.count()
        return self.sum(value) * (self.constant(1.0) / self.count())

    def parameter_sum(self, value: TwinValue, held: str | None = None, *, atomic: bool = False) -> TwinValue:
        """Return the sum over the elements of each entry of weight, (1, entries)."""
        if atomic or self._narrower(held):
            raise NoTwinError("sums over rows that are rounded to a narrower format have no twin yet")
        nodes = self._full(value)
        if isinstance(self.parameter, str):
            terms = nodes.T if self.parameter == "columns" else nodes
        else:
            _, counts = np.unique(self.parameter, return_counts=True)
            if len(set(counts.tolist())) > 1:
                raise NoTwinError("entries of weight belong to different numbers of elements")
            places = np.argsort(self.parameter.ravel(), kind="stable")
            terms = nodes.ravel()[places].reshape(len(counts), -1)
        return self.plain(self._sums(terms, self.trees.columns)[None, :])

    def share(self, value: TwinValue, name: str, *, product: bool = False) -> TwinValue:
        """Return the value: it is one number.

        Raises:
            NoTwinError: it is a product that some uses may have fused, and the declaration says that none is.

        """
        if product and self.way.contracted and not self.mixes:
            raise NoTwinError(f"whether all uses of {name} fuse it alike is not looked at")
        return value if product else self.plain(value.array)

    @property
    def rounds(self) -> bool:
        """Yes: the code computes in one of the ways."""
        return True

    def either(self, *ways: TwinValue) -> TwinValue:
        """Return the first of the ways whose terms the code has: the bound of a form holds for each."""
        held = (way for way in ways if self.orders.holds(self._full(way)))
        return next(held, ways[0])

    def cast(self, value: TwinValue, role: str) -> TwinValue:
        """Return the value rounded to the dtype of a tensor."""
        name = self._narrower(role)
        return value if name is None else self.plain(self.rounded.cast(FORMATS[name], value.array))

    def rsqrt(self, value: TwinValue) -> TwinValue:
        """Return value**-1/2, by the opcodes of the way.

        Raises:
            NoTwinError: there are none.

        """
        if not self.way.root:
            raise NoTwinError("the code takes no root")
        rounded, held, array = self.rounded, SHORT_NAMES[self.rounded.format.name], value.array
        for name in self.way.root:
            if name.startswith("div"):
                one = np.asarray(1.0)
                append = rounded.builder.append
                array = rounded.symbols(append(f"{name}.{held}", rounded.nodes(one), rounded.nodes(array)))
            else:
                array = rounded.symbols(rounded.builder.append(f"{name}.{held}", rounded.nodes(array)))
        return self.plain(array)

    def rsqrt_of_squares(self, squares: TwinValue, eps: TwinValue) -> TwinValue:
        """Return (squares + eps)**-1/2."""
        return self.rsqrt(squares + eps)

    def exp(self, value: TwinValue) -> TwinValue:
        """Return e**value as 2**(value * log2(e)), by the opcode of the way."""
        if self.way.power.startswith("exp."):
            return self._called(self.way.power, value)
        return self.exp2(value * self.log2_e())

    def log(self, value: TwinValue) -> TwinValue:
        """Return the natural logarithm, by the function of the way."""
        return self._called(self.way.logarithm, value)

    def sigmoid(self, value: TwinValue) -> TwinValue:
        """Return 1 / (1 + e**-value), the quotient as the code takes it (T15)."""
        one = self.constant(1.0)
        below, held = one + self.exp(-value), SHORT_NAMES[self.rounded.format.name]
        reciprocal = self.rounded.builder.append(f"{RECIPROCAL}.{held}", self.rounded.nodes(below.array))
        return self.either(one / below, self.plain(self.rounded.symbols(reciprocal)))

    def tanh(self, value: TwinValue, *, approximate: bool = False) -> TwinValue:
        """Return the hyperbolic tangent, by libdevice's function, or by the instruction."""
        return self._called("tanh.approx" if approximate else TANGENT, value)

    def totals(self, *values: TwinValue, of_rows: bool = False) -> TwinValue:
        """Return the sums of all elements of each value, (1, how many)."""
        tree, columns = self.trees.columns, 1 if of_rows else self.columns
        if not of_rows:
            tree = of_all(self.trees.row_gradients, tree, self.rows, columns)
        terms = (np.broadcast_to(self.rounded.nodes(v.array), (self.rows, columns)) for v in values)
        sums = [self._sums(one.reshape(1, -1), tree) for one in terms]
        nodes = np.concatenate([self.rounded.nodes(one).reshape(1, 1) for one in sums], axis=1)
        return self.plain(self.rounded.symbols(nodes))

    def entry(self, value: TwinValue, number: int) -> TwinValue:
        """Return one number of a parameter, (1, 1)."""
        return self.plain(value.array[:, number : number + 1])

    def exp2(self, value: TwinValue) -> TwinValue:
        """Return 2**value, by the opcode of the way."""
        return self._called(self.way.power, value)

    def _called(self, function: str, value: TwinValue) -> TwinValue:
        name = f"{function}.{SHORT_NAMES[self.rounded.format.name]}"
        nodes = self.rounded.builder.append(name, self.rounded.nodes(value.array))
        return self.plain(self.rounded.symbols(nodes))

    def log2_e(self) -> TwinValue:
        """Return log2(e) as the format holds it."""
        return self.constant(math.log2(math.e))

    def maximum(self, value: TwinValue) -> TwinValue:
        """Return the largest element of each row, in the order that is read off the code."""
        return self.largest(self._full(value))

    def largest(self, terms: Ids) -> TwinValue:
        """Return the largest of nodes (rows, n), (rows, 1), in the order that is read off the code."""
        nodes = self.rounded.symbols(terms.copy())
        root = 0
        for step in self.orders.of_maximum(terms):
            nodes[:, step.left] = self.rounded.maximum(nodes[:, step.left], nodes[:, step.right])
            root = int(step.left[0])
        return self.plain(nodes[:, [root]])

    def online_sum(self, x: TwinValue, *, base_two: bool = False) -> TwinValue:
        """Return the sum of exp(x - max(x)) over each row, rescaled wherever parts meet."""
        if base_two:
            raise NoTwinError("an online sum of powers of two has no twin")
        return self.online(self, self._full(x))

    def __getattr__(self, name: str) -> object:
        """Refuse what no twin has.

        Raises:
            NoTwinError: always.

        """
        if name.startswith("_"):
            raise AttributeError(name)
        raise NoTwinError(f"the form's {name} has no twin yet")

    def _narrower(self, role: str | None) -> str | None:
        """Return the dtype of a tensor if it does not hold every number of this format."""
        name = None if role is None else self.dtypes.get(role, self.dtypes["input"])
        return None if name is None or FORMATS[name].holds(self.rounded.format) else name

    def _full(self, value: TwinValue) -> Ids:
        return np.broadcast_to(self.rounded.nodes(value.array), (self.rows, self.columns))

    def _sums(self, terms: Ids, tree: Tree) -> Array:
        rounded, root = self.rounded, 0
        nodes = rounded.symbols(terms.copy())
        for step in rounded.order(tree, nodes):
            left, right = nodes[:, step.left], nodes[:, step.right]
            if isinstance(step, Unordered):
                pair = rounded.nodes(left), rounded.nodes(right)
                nodes[:, step.left] = rounded.symbols(rounded.builder.append(UNORDERED_SUM, *pair))
            else:
                nodes[:, step.left] = rounded.add(left, right)
                self.unfused.always.append(rounded.nodes(nodes[:, step.left]))
            root = int(step.left[0])
        return nodes[:, root]
