"""The expressions that a declaration says a kernel computes: its variance algorithm and its form, on symbols.

What is declared leaves things open that compiled code decides: the order of sums, whether a product is fused,
how a root is taken. A `Way` settles them. The twin of a kernel is the declared computation along one way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, cast

import numpy as np

from verifier.arithmetic.abstract_number import Form, Terms
from verifier.arithmetic.formats import FORMATS, Array, Contraction, DivideByN, Format, ieee
from verifier.arithmetic.graph.graph import Builder, Graph, Ids
from verifier.arithmetic.graph.symbols import SHORT_NAMES, Larger, SymbolicRounded, Symbols, converted
from verifier.arithmetic.simulated import Rounded
from verifier.arithmetic.trees.steps import Step
from verifier.arithmetic.trees.tree import Tree
from verifier.bounds import variance
from verifier.bounds.variance import Reduction
from verifier.bounds.variance import options as variance_options
from verifier.bounds.variance.simulate import Executed
from verifier.ops import Op
from verifier.records.case import Case
from verifier.records.subject import PARAMETERS, Claim, Subject, Trees


class Orders(Protocol):
    """In which orders compiled code joins nodes (rows, n) of a builder, arguments having these formats."""

    def of_sum(self, builder: Builder, formats: Mapping[str, str], nodes: Ids, declared: Tree) -> list[Step]:
        """Return the order of a sum, of which a tree is declared."""

    def of_maximum(self, builder: Builder, nodes: Ids, formats: Mapping[str, str]) -> list[Step]:
        """Return the order of a maximum."""


RAW = ("input", "weight", "bias", "grad_output", "mean", "rstd")


class NoTwinError(ValueError):
    """A declaration, or a result, of which no expressions can be made."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """What a declaration leaves to the compiled code.

    divide: the opcode of a quotient. power: that of 2**x. root: those of 1 / sqrt(v), in order.
    larger: how a clamp is written.
    fuses: whether products of the form are fused into the sums that use them. form: which of the ways that
    the form offers. contracted: the code is compared with the way up to fused products.
    """

    divide_by_n: DivideByN = "division"
    mean_contraction: Contraction = "none"
    clamp: bool = False
    larger: Larger = "max"
    divide: str = "div.rn"
    root: tuple[str, ...] = ("sqrt.rn", "div.rn")
    power: str = "ex2.approx"
    fuses: bool = False
    form: int = 0
    contracted: bool = False


@dataclass(frozen=True, kw_only=True)
class Held:
    """A value of the form; `product` is the pair that it was just multiplied from."""

    numbers: TwinNumbers
    array: Array
    product: tuple[Array, Array] | None = None

    def __add__(self, other: Held) -> Held:
        """Return the rounded sum."""
        return self.numbers.added(self, other)

    def __sub__(self, other: Held) -> Held:
        """Return the rounded difference."""
        fuses = self.numbers.way.fuses and (self.product or other.product)
        if fuses:
            return self.numbers.added(self, -other)
        return self.numbers.plain(self.numbers.rounded.subtract(self.array, other.array))

    def __neg__(self) -> Held:
        """Return the negative."""
        pair = None if self.product is None else (-self.product[0], self.product[1])
        return replace(self, array=-self.array, product=pair)

    def __mul__(self, other: Held) -> Held:
        """Return the rounded product."""
        array = self.numbers.rounded.multiply(self.array, other.array)
        return replace(self, array=array, product=(self.array, other.array))

    def __truediv__(self, other: Held) -> Held:
        """Return the rounded quotient."""
        return self.numbers.plain(self.numbers.rounded.divide(self.array, other.array))


@dataclass(kw_only=True)
class TwinNumbers:
    """`verifier.arithmetic.abstract_number.Numbers` on symbols."""

    rounded: SymbolicRounded
    way: Way
    rows: int
    columns: int
    dtypes: Mapping[str, str]
    reduction: Reduction
    mixes: bool
    trees: Trees
    parameter: Ids | str
    maxima: Callable[[Builder, Ids], list[Step]]
    computed: tuple[Held, Held] | None = None
    saved: tuple[Held, Held] | None = None
    offered: int = field(default=1)

    def plain(self, array: Array) -> Held:
        """Return a value that is no product."""
        return Held(numbers=self, array=array)

    def added(self, a: Held, b: Held) -> Held:
        """Return a + b; a product is fused into it, if products are fused."""
        product, other = (b, a) if b.product is not None else (a, b)
        if product.product is None or not self.way.fuses:
            return self.plain(self.rounded.add(a.array, b.array))
        return self.plain(self.rounded.multiply_add(*product.product, other.array))

    def moments(self, _x: Held, /) -> tuple[Held, Held]:
        """Return mean and rstd."""
        if self.computed is None:
            raise NoTwinError("statistics that are not computed from the row have no twin yet")
        return self.computed

    def stepped_moments(self, x: Held) -> tuple[Held, Held]:
        """Return `moments`."""
        return self.moments(x)

    def saved_moments(self, _x: Held, /) -> tuple[Held, Held]:
        """Return mean and rstd as the backward pass reads them."""
        if self.saved is None:
            raise NoTwinError("statistics that are not computed from the row have no twin yet")
        return self.saved

    def constant(self, number: float) -> Held:
        """Return a constant as the format holds it."""
        return self.plain(self.rounded.of(np.full((1, 1), number)))

    def count(self) -> Held:
        """Return the number of columns."""
        return self.constant(float(self.columns))

    def sum(self, value: Held) -> Held:
        """Return the sum over each row."""
        return self.plain(self._sums(self._full(value), self.trees.row_gradients)[:, None])

    def mean(self, value: Held) -> Held:
        """Return the sum over each row divided by the number of columns."""
        if self.way.divide_by_n == "division":
            return self.sum(value) / self.count()
        return self.sum(value) * (self.constant(1.0) / self.count())

    def parameter_sum(self, value: Held, held: str | None = None, *, atomic: bool = False) -> Held:
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

    def share(self, value: Held, name: str, *, product: bool = False) -> Held:
        """Return the value: it is one number.

        Raises:
            NoTwinError: it is a product that some uses may have fused, and the declaration says that none is.

        """
        if product and self.way.contracted and not self.mixes:
            raise NoTwinError(f"whether all uses of {name} fuse it alike is not looked at")
        return value if product else self.plain(value.array)

    def either(self, *ways: Held) -> Held:
        """Return the value along the way."""
        self.offered = max(self.offered, len(ways))
        return ways[self.way.form % len(ways)]

    def cast(self, value: Held, role: str) -> Held:
        """Return the value rounded to the dtype of a tensor."""
        name = self._narrower(role)
        return value if name is None else self.plain(self.rounded.cast(FORMATS[name], value.array))

    def rsqrt(self, value: Held) -> Held:
        """Return value**-1/2, by the opcodes of the way."""
        rounded, held, array = self.rounded, SHORT_NAMES[self.rounded.format.name], value.array
        for name in self.way.root:
            if name.startswith("div"):
                one = np.asarray(1.0)
                append = rounded.builder.append
                array = rounded.symbols(append(f"{name}.{held}", rounded.nodes(one), rounded.nodes(array)))
            else:
                array = rounded.symbols(rounded.builder.append(f"{name}.{held}", rounded.nodes(array)))
        return self.plain(array)

    def exp(self, value: Held) -> Held:
        """Return e**value as 2**(value * log2(e)), by the opcode of the way."""
        return self.exp2(value * self.log2_e())

    def exp2(self, value: Held) -> Held:
        """Return 2**value, by the opcode of the way."""
        name = f"{self.way.power}.{SHORT_NAMES[self.rounded.format.name]}"
        nodes = self.rounded.builder.append(name, self.rounded.nodes(value.array))
        return self.plain(self.rounded.symbols(nodes))

    def log2_e(self) -> Held:
        """Return log2(e) as the format holds it."""
        return self.constant(math.log2(math.e))

    def maximum(self, value: Held) -> Held:
        """Return the largest element of each row, in the order that is read off the code."""
        terms = self._full(value)
        nodes = self.rounded.symbols(terms.copy())
        root = 0
        for step in self.maxima(self.rounded.builder, terms):
            nodes[:, step.left] = self.rounded.maximum(nodes[:, step.left], nodes[:, step.right])
            root = int(step.left[0])
        return self.plain(nodes[:, [root]])

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

    def _full(self, value: Held) -> Ids:
        return np.broadcast_to(self.rounded.nodes(value.array), (self.rows, self.columns))

    def _sums(self, terms: Ids, tree: Tree) -> Array:
        run = Executed(rounded=self.rounded, claim=self.reduction, count=terms.shape[1])
        return run.sum(self.rounded.symbols(terms), tree)


def twin(op: Op, subject: Subject, case: Case, way: Way, orders: Orders, *, gradients: bool = False) -> Graph:
    """Return the expressions of all results, in canonical rows.

    Raises:
        NoTwinError: the declaration is not of a kind that has a twin.
        OrderError: the compiled code has no sum of the terms that the declaration sums.

    """
    claim = subject.claim
    if not op.claimed(claim):
        raise NoTwinError("no variance algorithm is declared")
    if way.contracted and way.divide_by_n == "reciprocal" and claim.mean_contraction != "mixed":
        raise NoTwinError("whether all uses of the mean fuse its product alike is not looked at")
    builder, dtypes = Builder(), {n: str(t.dtype).removeprefix("torch.") for n, t in case.given.items()}
    formats = {name: SHORT_NAMES[dtype] for name, dtype in dtypes.items() if dtype in SHORT_NAMES}
    accumulation, form = FORMATS[subject.accumulation(case.dtype)], op.form(claim, case.dtype)

    def read(nodes: Ids, tree: Tree) -> list[Step]:
        return orders.of_sum(builder, formats, nodes, tree)

    named = {} if way.divide == "div.rn" else {"divide": f"{way.divide}.{SHORT_NAMES[accumulation.name]}"}
    rounded = SymbolicRounded(
        format=accumulation, builder=builder, larger=way.larger, reads=read, named=named
    )
    parameter = getattr(op.problem(case), "parameter", "columns")
    leaves = {n: _leaves(op, case, rounded, n, parameter) for n in RAW if n in case.given}
    saved = claim.saved_dtype or accumulation.name
    saved = dtypes["input"] if saved == "input" else saved
    numbers = TwinNumbers(
        rounded=rounded, way=way, rows=case.rows, columns=case.columns,
        reduction=_reduction(op, claim, way, form, accumulation, saved),
        dtypes={**dtypes, "output": dtypes["input"]}, mixes=claim.mean_contraction == "mixed",
        trees=claim.trees, parameter=parameter, maxima=partial(orders.of_maximum, formats=formats),
    )  # fmt: skip
    if op.needs_variance:
        _compute_statistics(numbers, claim, leaves["input"], case.eps, saved)
    given = "rstd" in leaves
    if given:
        mean = leaves.get("mean", rounded.symbols(rounded.nodes(np.zeros((case.rows, 1)))))
        numbers.computed = numbers.saved = (numbers.plain(mean), numbers.plain(leaves["rstd"]))
    results = _results(form, numbers, leaves, given=given, gradients=gradients)
    stored = {"mean": saved, "rstd": saved, "output": dtypes["input"]}
    outputs = {
        name: _stored(rounded, value, stored.get(name) or _dtype_of_gradient(name, dtypes))
        for name, value in results.items()
    }
    return builder.graph(outputs, formats)


def _reduction(  # noqa: PLR0917
    op: Op, claim: Claim, way: Way, form: Form, accumulation: Format, saved: str
) -> Reduction:
    if claim.variance is None or not op.needs_variance:
        return Reduction(arithmetic=ieee(accumulation.name), tree=claim.trees.row_gradients)
    if form.reads_saved and claim.saved_dtype not in {None, "input"}:
        raise NoTwinError("statistics that are read as saved have no twin yet")
    return variance_options.reduction(
        claim.variance,
        claim.variance_options,
        arithmetic=ieee(accumulation.name),
        tree=claim.trees.statistics,
        divide_by_n=way.divide_by_n,
        mean_contraction=way.mean_contraction,
        clamp=way.clamp,
        mean_cast=saved if form.reads_saved and claim.saved_dtype == "input" else None,
    )


def _compute_statistics(numbers: TwinNumbers, claim: Claim, x: Array, eps: float, saved: str) -> None:
    """Let mean and rstd be what the variance algorithm gives, and those saved what `saved` holds of them."""
    rounded = numbers.rounded
    assert claim.variance is not None
    mean, spread = variance.algorithm(claim.variance).simulate(rounded, x, numbers.reduction)
    held = Rounded(format=rounded.format).of(np.asarray(eps))
    root = numbers.rsqrt(numbers.plain(rounded.add(spread, held)[:, None]))
    numbers.computed = numbers.plain(mean[:, None]), root
    kept = [numbers.plain(rounded.cast(FORMATS[saved], value.array)) for value in numbers.computed]
    numbers.saved = kept[0], kept[1]


def _results(
    form: Form, numbers: TwinNumbers, leaves: Mapping[str, Array], *, given: bool, gradients: bool
) -> dict[str, Array]:
    """Return what a kernel computes: of one that is given its statistics, gradients alone."""
    held = {name: numbers.plain(array) for name, array in leaves.items()}
    terms = Terms(x=held["input"], **{n: held.get(n) for n in ("weight", "bias", "grad_output")})
    if given:  # it has the gradient of any bias
        any_bias = replace(terms, bias=numbers.constant(0.0))
        return {name: value.array for name, value in form.backward(numbers, any_bias).items()}
    output = form.forward(numbers, terms)
    found = {"output": output.array}
    if numbers.saved is not None:
        found |= {n: v.array for n, v in zip(("mean", "rstd"), numbers.saved, strict=True)}
    if gradients:
        backward = form.backward(numbers, replace(terms, output=output))
        found |= {name: value.array for name, value in backward.items()}
    return found


def _leaves(op: Op, case: Case, rounded: SymbolicRounded, name: str, parameter: Ids | str) -> Array:
    """Return an argument in canonical rows, as the accumulation format holds it.

    parameter: which entry of weight each element belongs to; "columns" or "rows" where it is its own.
    """
    tensor = case.given[name]
    kept = FORMATS[str(tensor.dtype).removeprefix("torch.")]
    index = np.atleast_2d(op.flat_index(case, name, tuple(tensor.shape)))
    if name in PARAMETERS and not isinstance(parameter, str):
        index = index.ravel()[parameter]
    elif name in {"mean", "rstd"} or (name in PARAMETERS and parameter == "rows"):
        index = index.reshape(-1, 1)
    symbols = Symbols(rounded.builder, kept, rounded.builder.append(f"input:{name}", value=index))
    return cast("Array", converted(symbols, rounded.format))


def _dtype_of_gradient(name: str, dtypes: Mapping[str, str]) -> str:
    """Return the dtype of an argument's gradient; that of a bias that is not given is the weight's."""
    of = name.removeprefix("grad_")
    return dtypes.get(of) or dtypes.get("weight") or dtypes["input"]


def _stored(rounded: SymbolicRounded, values: Array, dtype: str) -> Ids:
    return converted(
        cast("Symbols", cast("object", rounded.symbols(rounded.nodes(values)))), FORMATS[dtype]
    ).nodes
