"""Number types that run a generic formula exactly: on balls (flint.arb) or on mpmath numbers.

Both follow `verifier.arithmetic.abstract_number.Numbers`.
Values are NumPy object arrays.
Precision is global in either library, so formulas run inside `with numbers.working():`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from verifier.arithmetic.abstract_number import Value
from verifier.arithmetic.formats import Array
from verifier.oracle.balls import enclose, precision
from verifier.oracle.enclosure import Enclosure


@dataclass(frozen=True, kw_only=True)
class ObjectNumbers:
    """What both number types share: (rows, columns) is the shape of the op's canonical rows.

    `parameter` maps elements to entries of weight as in `RowProblem`; `saved` are the (mean, rstd)
    that the backward pass reads, if they are given, each (rows, 1) in float64.
    """

    rows: int
    columns: int
    bits: int
    eps: float = 0.0
    centred: bool = True
    parameter: Any = "columns"
    saved: tuple[Array, Array] | None = field(default=None)

    def number(self, value: float) -> Any:
        """Return one exact number."""
        raise NotImplementedError

    def lift(self, array: Array) -> Value:
        """Return the exact values of a float64 array."""
        values = np.asarray(array, dtype=np.float64)
        lifted = np.array([self.number(value) for value in values.ravel().tolist()], dtype=object)
        return lifted.reshape(values.shape)

    def moments(self, x: Value) -> tuple[Value, Value]:
        """Return the exact (mean, rstd) of each row, (rows, 1); mean is 0 if not centred."""
        mean = self.mean(x) if self.centred else self.lift(np.zeros((self.rows, 1)))
        deviation = x - mean
        return mean, self.rsqrt(self.mean(deviation * deviation) + self.number(self.eps))

    def mean_parts(self, x: Value) -> tuple[Value, Value]:
        """Return the mean and nothing: nothing is rounded."""
        return self.saved_moments(x)[0], self.lift(np.zeros((self.rows, 1)))

    def saved_moments(self, x: Value) -> tuple[Value, Value]:
        """Return the given statistics, or else those of the rows."""
        if self.saved is None:
            return self.moments(x)
        mean, rstd = self.saved
        return self.lift(mean), self.lift(rstd)

    def constant(self, number: float) -> Value:
        """Return an exact constant."""
        return self.lift(np.array([[number]]))

    def sum(self, value: Value) -> Value:
        """Return the sum over each row, (rows, 1)."""
        return np.broadcast_to(value, (self.rows, self.columns)).sum(axis=1, keepdims=True)

    def mean(self, value: Value) -> Value:
        """Return the mean over each row, (rows, 1)."""
        return self.sum(value) / self.number(self.columns)

    def parameter_sum(self, value: Value) -> Value:
        """Return the sums over the entries of weight, (1, entries)."""
        wide = np.broadcast_to(value, (self.rows, self.columns))
        if isinstance(self.parameter, str):
            return wide.sum(axis=0 if self.parameter == "columns" else 1).reshape(1, -1)
        index = np.asarray(self.parameter)
        totals = np.array([self.number(0.0) for _ in range(int(index.max()) + 1)], dtype=object)
        np.add.at(totals, index.ravel(), wide.ravel())
        return totals.reshape(1, -1)

    def online_sum(self, x: Value, *, base_two: bool = False) -> Value:
        """Return the sum of exp(x - max(x)): where nothing is rounded, the order does not matter."""
        away = x - self.maximum(x)
        return self.sum(self.exp2(away) if base_two else self.exp(away))

    def exp(self, value: Value) -> Value:
        """Return e**value."""
        raise NotImplementedError

    def maximum(self, value: Value) -> Value:
        """Return the largest element of each row, (rows, 1)."""
        raise NotImplementedError

    def count(self) -> Value:
        """Return the number of columns."""
        return self.constant(float(self.columns))

    def share(self, value: Value, name: str) -> Value:
        """Return the value: nothing is rounded here."""
        del name
        return value

    def cast(self, value: Value, role: str) -> Value:
        """Return the value: nothing is rounded here."""
        del role
        return value

    def rsqrt(self, value: Value) -> Value:
        """Return value**-1/2."""
        raise NotImplementedError


class ExactNumbers(ObjectNumbers):
    """Balls of flint.arb: every result contains the exact value."""

    @contextmanager
    def working(self) -> Iterator[None]:
        """Work at this precision inside the block."""
        with precision(self.bits):
            yield

    def number(self, value: float) -> Any:
        """Return an exact ball."""
        from flint import arb

        return arb(float(value))

    def rsqrt(self, value: Value) -> Value:
        """Return value**-1/2."""
        return _each(value, lambda a: a.rsqrt())

    def sqrt(self, value: Value) -> Value:
        """Return the square root."""
        return _each(value, lambda a: a.sqrt())

    def exp(self, value: Value) -> Value:
        """Return e**value."""
        return _each(value, lambda a: a.exp())

    def log(self, value: Value) -> Value:
        """Return the natural logarithm."""
        return _each(value, lambda a: a.log())

    def maximum(self, value: Value) -> Value:
        """Return the largest element of each row, (rows, 1)."""
        return _row_maximum(value, lambda a, b: a.max(b))

    def enclosure(self, value: Value) -> Enclosure:
        """Return the balls as an enclosure of their shape."""
        with precision(self.bits):
            return enclose(value.ravel().tolist(), value.shape)


class MpNumbers(ObjectNumbers):
    """mpmath numbers: rounded at `bits`, no enclosure; the independent oracle of record."""

    @contextmanager
    def working(self) -> Iterator[None]:
        """Work at this precision inside the block."""
        from mpmath import mp

        with mp.workprec(self.bits):
            yield

    def number(self, value: float) -> Any:
        """Return an exact number."""
        from mpmath import mpf

        return mpf(float(value))

    def rsqrt(self, value: Value) -> Value:
        """Return value**-1/2."""
        return 1 / self.sqrt(value)

    def sqrt(self, value: Value) -> Value:
        """Return the square root."""
        from mpmath import mp

        return _each(value, mp.sqrt)

    def exp(self, value: Value) -> Value:
        """Return e**value."""
        from mpmath import mp

        return _each(value, mp.exp)

    def log(self, value: Value) -> Value:
        """Return the natural logarithm."""
        from mpmath import mp

        return _each(value, mp.log)

    def maximum(self, value: Value) -> Value:
        """Return the largest element of each row, (rows, 1)."""
        return _row_maximum(value, max)


def _each(value: Value, function: Any) -> Value:
    found = np.array([function(a) for a in np.asarray(value, dtype=object).ravel()], dtype=object)
    return found.reshape(np.shape(value))


def _row_maximum(value: Value, larger: Any) -> Value:
    return np.array([[reduce(larger, row)] for row in value], dtype=object)
