"""Number type that runs an op's own formula in a finite field, apart from what the machine's shadows compute.

It follows `verifier.arithmetic.abstract_number.Numbers`: values are arrays of field elements with operators.
The arithmetic is one of `verifier.machine.shadow.arithmetics`.
So kernel and specification share one mapping from floats to elements.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from verifier.machine.shadow.slots import ShadowArithmetic

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

    from verifier.arithmetic.abstract_number import Value
    from verifier.arithmetic.error_free.numpy_or_torch import Arrays
    from verifier.arithmetic.formats import Array
    from verifier.machine.arithmetic.numerics import Array as Residues
    from verifier.oracle.enclosure import Mask

LOG2_E = float(np.float32(1.4426950408889634))
"""The float32 literal that compilers write for log2(e): in the field it *is* log2(e), on both sides."""


class NoMeaningError(Exception):
    """A formula needs a function that this field does not have."""


class FieldOfResidues(ShadowArithmetic, Protocol):
    """An arithmetic of shadows that is one of a finite field."""

    @property
    def constants(self) -> Mapping[float, Fraction]:
        """The rationals that some floats stand for."""

    @property
    def opaque(self) -> set[str]:
        """Names of operations that had no rule, and gave an opaque function of their operands."""

    def moduli(self) -> int | Mapping[str, int]:
        """Return the prime, or that of each part of an element."""


@runtime_checkable
class FieldWithExponentials(FieldOfResidues, Protocol):
    """A finite field that has exponentials and logarithms as well."""

    def exponential(self, zero: Residues, shadow: Residues) -> Residues:
        """Return 2**shadow, 0 where `zero` holds."""

    def logarithm(self, shadow: Residues) -> Residues:
        """Return the logarithm to the base 2."""

    def has_logarithm(self, shadow: Residues) -> Residues:
        """Return whether there is a logarithm."""


class Elements:
    """An array of field elements, of which the named parts mean something; operators broadcast."""

    __array_ufunc__ = None

    def __init__(self, arithmetic: FieldOfResidues, residues: Residues, parts: frozenset[str]) -> None:
        """`parts`: residues that are exact, of those that the arithmetic's shadows have ("value", ...)."""
        self.arithmetic, self.residues, self.parts = arithmetic, np.asarray(residues), parts

    def _with(self, name: str, *others: Elements) -> Elements:
        residues = (self.residues, *(o.residues for o in others))
        parts = frozenset.intersection(self.parts, *(o.parts for o in others))
        result = self.arithmetic.apply(name, "f64", np.ones(()), (), residues)
        return Elements(self.arithmetic, result, parts)

    def __add__(self, other: Elements) -> Elements:
        """Return the sum."""
        return self._with("add", other)

    def __sub__(self, other: Elements) -> Elements:
        """Return the difference."""
        return self._with("sub", other)

    def __mul__(self, other: Elements) -> Elements:
        """Return the product."""
        return self._with("mul", other)

    def __truediv__(self, other: Elements) -> Elements:
        """Return the quotient."""
        return self._with("div", other)

    def __neg__(self) -> Elements:
        """Return the negative."""
        return self._with("neg")

    def folded(self, axis: int) -> Elements:
        """Return the sum along an axis, which is kept with extent 1."""
        residues = np.moveaxis(self.residues, axis, 0)
        while len(residues) > 1:
            half = len(residues) // 2
            pairs = self.arithmetic.apply(
                "add", "f64", np.ones(()), (), (residues[:half], residues[half : 2 * half])
            )
            residues = np.concatenate([pairs, residues[2 * half :]])
        if len(residues) == 0:
            residues = np.zeros((1, *residues.shape[1:]), dtype=residues.dtype)
        return Elements(self.arithmetic, np.moveaxis(residues, 0, axis), self.parts)

    def shaped(self, *shape: int) -> Elements:
        """Return the elements broadcast to a shape."""
        return Elements(self.arithmetic, np.broadcast_to(self.residues, shape), self.parts)


@dataclass(frozen=True, kw_only=True)
class FieldNumbers:
    """Runs a form on field elements of an op's canonical rows, (rows, columns).

    `parameter` maps elements to entries of weight as in `RowProblem`. `floats` (rows, columns) decide which
    element is the largest; the exponential of one that is -inf is 0. `given` are (mean, rstd) that no one
    computes: saved statistics, or running ones. `logarithms` (rows, 1) stand for those of each row where they
    are costly and nobody asks for them.
    `regular` collects for each root or logarithm which of its arguments have one, (rows, 1).
    """

    arithmetic: FieldOfResidues
    rows: int
    columns: int
    eps: float = 0.0
    centred: bool = True
    parameter: Arrays = "columns"
    floats: Array | None = None
    logarithms: Elements | None = None
    given: tuple[Elements, Elements] | None = None
    regular: list[Mask] = field(default_factory=list)

    def elements(self, residues: Residues) -> Elements:
        """Return residues as numbers whose every part is exact."""
        parts = np.dtype(self.arithmetic.dtype).names or ("value",)
        return Elements(self.arithmetic, residues, frozenset(parts))

    def lift(self, array: Array) -> Elements:
        """Return the elements of floats."""
        return self.elements(self.arithmetic.lift(np.asarray(array, dtype=np.float64), "f64"))

    def number(self, value: float) -> Elements:
        """Return one element, (1, 1)."""
        return self.lift(np.array([[float(value)]]))

    def rational(self, value: Fraction) -> Elements:
        """Return a rational, (1, 1)."""
        return self.number(value.numerator) / self.number(value.denominator)

    def constant(self, number: float) -> Elements:
        """Return one element, (1, 1)."""
        return self.number(number)

    def moments(self, x: Value) -> tuple[Value, Value]:
        """Return (mean, rstd) of each row, (rows, 1), or the given ones; mean is 0 if not centred."""
        if self.given is not None:
            return self.given
        mean = self.mean(x) if self.centred else self.lift(np.zeros((self.rows, 1)))
        deviation = x - mean
        return mean, self.rsqrt(self.mean(deviation * deviation) + self.number(self.eps))

    def mean_parts(self, x: Value) -> tuple[Value, Value]:
        """Return the mean and nothing: a field rounds nothing."""
        return self.moments(x)[0], self.lift(np.zeros((self.rows, 1)))

    def stepped_moments(self, x: Value) -> tuple[Value, Value]:
        """Return the same: a field rounds nothing."""
        return self.moments(x)

    def saved_moments(self, x: Value) -> tuple[Value, Value]:
        """Return the same: nothing is rounded when it is saved."""
        return self.moments(x)

    def sum(self, value: Value) -> Value:
        """Return the sum over each row, (rows, 1)."""
        return value.shaped(self.rows, self.columns).folded(1)

    def mean(self, value: Value) -> Value:
        """Return the mean over each row, (rows, 1)."""
        return self.sum(value) / self.count()

    def count(self) -> Value:
        """Return the number of columns, (1, 1)."""
        return self.number(float(self.columns))

    def online_sum(self, x: Value, *, base_two: bool = False) -> Value:
        """Return the sum of exp(x - max(x)): where nothing is rounded, the order does not matter."""
        away = x - self.maximum(x)
        return self.sum(self.exp2(away) if base_two else self.exp(away))

    def cast(self, value: Value, _role: str, /) -> Value:
        """Return the value: nothing is rounded here."""
        return value

    def parameter_sum(self, value: Value, _held: str | None = None, /, **_: bool) -> Value:
        """Return the sums over the entries of weight, (1, entries)."""
        wide = value.shaped(self.rows, self.columns)
        if isinstance(self.parameter, str):
            total = wide.folded(0 if self.parameter == "columns" else 1)
            return Elements(self.arithmetic, total.residues.reshape(1, -1), wide.parts)
        index = np.asarray(self.parameter)
        entries = int(index.max(initial=-1)) + 1
        sums = [
            Elements(self.arithmetic, wide.residues[index == entry], wide.parts).folded(0).residues
            for entry in range(entries)
        ]
        return Elements(self.arithmetic, np.concatenate(sums).reshape(1, -1), wide.parts)

    def share(self, value: Value, _name: str, /, **_: bool) -> Value:
        """Return the value: nothing is rounded here."""
        return value

    @property
    def rounds(self) -> bool:
        """No."""
        return False

    def either(self, one: Value, /, *_others: Value) -> Value:
        """Return one of several ways to write the same."""
        return one

    def maximum(self, value: Value) -> Value:
        """Return the element that is the largest as a float, (rows, 1)."""
        assert self.floats is not None
        place = self.floats.argmax(axis=1)[:, None]
        return Elements(self.arithmetic, np.take_along_axis(value.residues, place, axis=1), value.parts)

    def rsqrt(self, value: Value) -> Value:
        """Return value**-1/2, and remember where the value is a square."""
        root = value._with("sqrt")
        back = (root * root).residues
        self.regular.append(back == value.residues)
        return self.number(1.0) / root

    def rsqrt_of_squares(self, squares: Value, eps: Value) -> Value:
        """Return (squares + eps)**-1/2."""
        return self.rsqrt(squares + eps)

    def exp(self, value: Value) -> Value:
        """Return e**value, known as a value and not as an exponent again."""
        if not isinstance(self.arithmetic, FieldWithExponentials):
            raise NoMeaningError("exp")
        return self.exp2(value * self.log2_e())

    def sigmoid(self, value: Value) -> Value:
        """Return 1 / (1 + e**-value)."""
        one = self.number(1.0)
        return one / (one + self.exp(-value))

    def tanh(self, value: Value, **_: bool) -> Value:
        """Return 1 - 2 / (1 + e**(2 * value))."""
        one, two = self.number(1.0), self.number(2.0)
        return one - two / (one + self.exp(value * two))

    def totals(self, *values: Value, of_rows: bool = False) -> Value:
        """Return the sums of all elements of each value, (1, how many)."""
        shape = (self.rows, 1 if of_rows else self.columns)
        whole = [value.shaped(*shape).folded(0).folded(1) for value in values]
        parts = frozenset.intersection(*(one.parts for one in whole))
        return Elements(self.arithmetic, np.concatenate([one.residues for one in whole], axis=1), parts)

    def entry(self, value: Value, number: int) -> Value:
        """Return one number of a parameter, (1, 1)."""
        return Elements(self.arithmetic, value.residues[:, number : number + 1], value.parts)

    def log2_e(self) -> Value:
        """Return log2(e), (1, 1)."""
        return self.number(LOG2_E)

    def exp2(self, value: Value) -> Value:
        """Return 2**value, known as a value and not as an exponent again."""
        if not isinstance(self.arithmetic, FieldWithExponentials):
            raise NoMeaningError("exp2")
        if "exponent" not in value.parts:
            raise NoMeaningError("an exponential of an exponential")
        argument = value.residues
        vanishes = np.zeros(np.shape(argument), dtype=np.bool_)
        if self.floats is not None:
            vanishes = vanishes | np.isneginf(self.floats)
        argument = np.broadcast_to(argument, vanishes.shape)
        result = self.arithmetic.exponential(vanishes, argument)
        return Elements(self.arithmetic, result, frozenset({"value"}))

    def log(self, value: Value) -> Value:
        """Return the natural logarithm, known as an exponent; remember where the value has one."""
        if not isinstance(self.arithmetic, FieldWithExponentials):
            raise NoMeaningError("log")
        self.regular.append(self.arithmetic.has_logarithm(value.residues) | self._empty())
        if self.logarithms is not None:
            return self.logarithms
        result = self.arithmetic.logarithm(value.residues)
        return Elements(self.arithmetic, result, frozenset({"exponent"})) / self.number(LOG2_E)

    def with_statistics(self, mean: Elements, rstd: Elements) -> FieldNumbers:
        """Return the same numbers with given mean and rstd, (rows, 1)."""
        return replace(self, given=(mean, rstd))

    def divides_by_sum(self, output: Elements) -> None:
        """Remember where sums have logarithms: kernels may divide by a sum through its logarithm."""
        if output.parts == {"value"}:
            assert isinstance(self.arithmetic, FieldWithExponentials)
            assert self.floats is not None
            place = self.floats.argmax(axis=1)[:, None]  # of what is masked out the output is 0
            found = np.take_along_axis(output.residues, place, axis=1)
            self.regular.append(self.arithmetic.has_logarithm(found) | self._empty())

    def _empty(self) -> Mask:
        """Return the rows of which no element takes part, (rows, 1): their sum is 0."""
        if self.floats is None:
            return np.zeros((self.rows, 1), dtype=np.bool_)
        return np.asarray(np.isneginf(self.floats).all(axis=1, keepdims=True))

    def square_rows(self) -> Mask:
        """Return for each row whether every root and logarithm exists, (rows,)."""
        start = np.ones(self.rows, dtype=np.bool_)
        found = (np.broadcast_to(r, (self.rows, 1))[:, 0] for r in self.regular)
        return reduce(np.logical_and, found, start)
