"""Number type that runs an op's own formula in a finite field, beside what the machine's slots compute.

It follows `verifier.numbers.Numbers`: values are arrays of field elements with operators, and the
arithmetic is one of `verifier.machine.arithmetics`, so that kernel and specification share one mapping
from floats to elements.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from verifier.oracle.exact import ObjectNumbers

if TYPE_CHECKING:
    from fractions import Fraction

    from verifier.arithmetic import Array
    from verifier.numbers import Value

LOG2_E = float(np.float32(1.4426950408889634))
"""The float32 literal that compilers write for log2(e): in the field it *is* log2(e), on both sides."""


class NoMeaningError(Exception):
    """A formula needs a function that this field does not have."""


class Elements:
    """An array of field elements, of which the named parts mean something; operators broadcast."""

    __array_ufunc__ = None

    def __init__(self, arithmetic: Any, slots: Array, parts: frozenset[str]) -> None:
        """`parts`: residues that are exact, of those that the arithmetic's slots have ("value", ...)."""
        self.arithmetic, self.slots, self.parts = arithmetic, np.asarray(slots), parts

    def _with(self, name: str, *others: Elements) -> Elements:
        slots = (self.slots, *(o.slots for o in others))
        parts = frozenset.intersection(self.parts, *(o.parts for o in others))
        result = self.arithmetic.apply(name, "f64", np.ones(()), (), slots)
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
        slots = np.moveaxis(self.slots, axis, 0)
        while len(slots) > 1:
            half = len(slots) // 2
            pairs = self.arithmetic.apply(
                "add", "f64", np.ones(()), (), (slots[:half], slots[half : 2 * half])
            )
            slots = np.concatenate([pairs, slots[2 * half :]])
        if len(slots) == 0:
            slots = np.zeros((1, *slots.shape[1:]), dtype=slots.dtype)
        return Elements(self.arithmetic, np.moveaxis(slots, 0, axis), self.parts)

    def shaped(self, *shape: int) -> Elements:
        """Return the elements broadcast to a shape."""
        return Elements(self.arithmetic, np.broadcast_to(self.slots, shape), self.parts)


@dataclass(frozen=True, kw_only=True)
class FieldNumbers(ObjectNumbers):
    """Runs a form on field elements; what is shared with the exact oracle is inherited.

    `floats` (rows, columns) decide which element is the largest; `given` are (mean, rstd) that no one
    computes: saved statistics, or running ones; `logarithms` (rows, 1) stand for those of each row where they
    are costly and nobody asks for them. `regular` collects for each root or logarithm
    which of its arguments have one, (rows, 1).
    """

    arithmetic: Any
    bits: int = 61
    floats: Array | None = None
    logarithms: Elements | None = None
    given: tuple[Elements, Elements] | None = None
    regular: list[Any] = field(default_factory=list)

    def elements(self, slots: Array) -> Elements:
        """Return slots as numbers whose every part is exact."""
        parts = np.dtype(self.arithmetic.dtype).names or ("value",)
        return Elements(self.arithmetic, slots, frozenset(parts))

    def lift(self, array: Array) -> Elements:
        """Return the elements of floats."""
        return self.elements(self.arithmetic.lift(np.asarray(array, dtype=np.float64), "f64"))

    def number(self, value: float) -> Elements:
        """Return one element, (1, 1)."""
        return self.lift(np.array([[float(value)]]))

    def rational(self, value: Fraction) -> Elements:
        """Return a rational, (1, 1)."""
        return self.number(value.numerator) / self.number(value.denominator)

    def moments(self, x: Value) -> tuple[Value, Value]:
        """Return (mean, rstd) of each row, or the given ones."""
        return super().moments(x) if self.given is None else self.given

    def saved_moments(self, x: Value) -> tuple[Value, Value]:
        """Return the same: nothing is rounded when it is saved."""
        return self.moments(x)

    def sum(self, value: Value) -> Value:
        """Return the sum over each row, (rows, 1)."""
        return value.shaped(self.rows, self.columns).folded(1)

    def parameter_sum(self, value: Value, held: str | None = None, *, atomic: bool = False) -> Value:
        """Return the sums over the entries of weight, (1, entries)."""
        del held, atomic
        wide = value.shaped(self.rows, self.columns)
        if isinstance(self.parameter, str):
            total = wide.folded(0 if self.parameter == "columns" else 1)
            return Elements(self.arithmetic, total.slots.reshape(1, -1), wide.parts)
        index = np.asarray(self.parameter)
        entries = int(index.max(initial=-1)) + 1
        sums = [
            Elements(self.arithmetic, wide.slots[index == entry], wide.parts).folded(0).slots
            for entry in range(entries)
        ]
        return Elements(self.arithmetic, np.concatenate(sums).reshape(1, -1), wide.parts)

    def share(self, value: Value, name: str, *, product: bool = False) -> Value:
        """Return the value: nothing is rounded here."""
        del name, product
        return value

    def either(self, one: Value, *others: Value) -> Value:
        """Return one of several ways to write the same."""
        del others
        return one

    def maximum(self, value: Value) -> Value:
        """Return the element that is the largest as a float, (rows, 1)."""
        assert self.floats is not None
        place = self.floats.argmax(axis=1)[:, None]
        return Elements(self.arithmetic, np.take_along_axis(value.slots, place, axis=1), value.parts)

    def rsqrt(self, value: Value) -> Value:
        """Return value**-1/2, and remember where the value is a square."""
        root = value._with("sqrt")
        back = (root * root).slots
        self.regular.append(back == value.slots)
        return self.number(1.0) / root

    def exp(self, value: Value) -> Value:
        """Return e**value, known as a value and not as an exponent again."""
        if not hasattr(self.arithmetic, "exponential"):
            raise NoMeaningError("exp")
        return self.exp2(value * self.log2_e())

    def log2_e(self) -> Value:
        """Return log2(e), (1, 1)."""
        return self.number(LOG2_E)

    def exp2(self, value: Value) -> Value:
        """Return 2**value, known as a value and not as an exponent again."""
        if not hasattr(self.arithmetic, "exponential"):
            raise NoMeaningError("exp2")
        if "exponent" not in value.parts:
            raise NoMeaningError("an exponential of an exponential")
        argument = value.slots
        result = self.arithmetic.exponential(np.zeros(np.shape(argument), dtype=np.bool_), argument)
        return Elements(self.arithmetic, result, frozenset({"value"}))

    def log(self, value: Value) -> Value:
        """Return the natural logarithm, known as an exponent; remember where the value has one."""
        if not hasattr(self.arithmetic, "logarithm"):
            raise NoMeaningError("log")
        self.regular.append(self.arithmetic.has_logarithm(value.slots))
        if self.logarithms is not None:
            return self.logarithms
        result = self.arithmetic.logarithm(value.slots)
        return Elements(self.arithmetic, result, frozenset({"exponent"})) / self.number(LOG2_E)

    def square_rows(self) -> Any:
        """Return for each row whether every root and logarithm exists, (rows,)."""
        start = np.ones(self.rows, dtype=np.bool_)
        found = (np.broadcast_to(r, (self.rows, 1))[:, 0] for r in self.regular)
        return reduce(np.logical_and, found, start)
