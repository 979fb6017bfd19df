"""Number type that runs a formula on Arb balls: every result contains the exact value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np

from verifier.arithmetic.abstract_number import Value
from verifier.arithmetic.error_free.numpy_or_torch import Arrays
from verifier.arithmetic.formats import Array
from verifier.oracle.balls import Ball, ball, balls
from verifier.oracle.formulas.unrounded import Unrounded

Objects = np.ndarray[tuple[int, ...], np.dtype[np.object_]]
"""Arrays of balls."""


@dataclass(frozen=True, kw_only=True)
class BallNumbers(Unrounded):
    """`verifier.arithmetic.abstract_number.Numbers` on arrays of balls, at the precision that is set."""

    rows: int
    columns: int
    eps: float
    centred: bool
    parameter: Arrays = "columns"

    def lift(self, array: Array) -> Objects:
        """Return the exact balls of float64 numbers."""
        made = np.empty(array.size, dtype=object)
        made[:] = balls(array.ravel().tolist())
        return made.reshape(array.shape)

    def constant(self, number: float) -> Objects:
        """Return an exact constant."""
        return self.lift(np.full((1, 1), float(number)))

    def moments(self, x: Value) -> tuple[Value, Value]:
        """Return (mean, rstd) of each row, (rows, 1); mean is 0 if not centred."""
        mean = self.mean(x) if self.centred else self.lift(np.zeros((self.rows, 1)))
        deviation = x - mean
        return mean, self.rsqrt(self.mean(deviation * deviation) + self.constant(self.eps))

    def sum(self, value: Value) -> Objects:
        """Return the sum over each row, (rows, 1)."""
        wide = np.broadcast_to(value, (self.rows, self.columns))
        return np.asarray(np.add.reduce(wide, axis=1, keepdims=True, initial=ball(0.0)))

    def parameter_sum(self, value: Value, _held: str | None = None, /, **_: bool) -> Objects:
        """Return the sums over the entries of weight, (1, entries)."""
        wide = np.broadcast_to(value, (self.rows, self.columns))
        if isinstance(self.parameter, str):
            axis = 0 if self.parameter == "columns" else 1
            return np.asarray(np.add.reduce(wide, axis=axis, initial=ball(0.0))).reshape(1, -1)
        index = np.asarray(self.parameter)
        totals = self.lift(np.zeros(int(index.max(initial=-1)) + 1))
        np.add.at(totals, index.ravel(), wide.ravel())
        return totals.reshape(1, -1)

    def rsqrt(self, value: Value) -> Objects:
        """Return value**-1/2."""
        return _each(lambda number: number.rsqrt(), value)

    def exp(self, value: Value) -> Objects:
        """Return e**value."""
        return _each(lambda number: number.exp(), value)

    def log(self, value: Value) -> Objects:
        """Return the natural logarithm."""
        return _each(lambda number: number.log(), value)

    def sigmoid(self, value: Value) -> Objects:
        """Return 1 / (1 + e**-value)."""
        return _each(_sigmoid, value)

    def tanh(self, value: Value, **_: bool) -> Objects:
        """Return the hyperbolic tangent."""
        return _each(_tangent, value)

    def totals(self, *values: Value, of_rows: bool = False) -> Objects:
        """Return the sums of all elements of each value, (1, how many)."""
        shape = (self.rows, 1 if of_rows else self.columns)
        wide = (np.broadcast_to(value, shape).ravel() for value in values)
        return np.array([[np.add.reduce(one, initial=ball(0.0)) for one in wide]], dtype=object)

    def entry(self, value: Value, number: int) -> Objects:
        """Return one number of a parameter, (1, 1)."""
        return np.asarray(value[:, number : number + 1])

    def maximum(self, value: Value) -> Objects:
        """Return the largest element of each row, (rows, 1)."""
        wide = np.broadcast_to(value, (self.rows, self.columns))
        return np.array([[reduce(lambda a, b: a.max(b), row)] for row in wide], dtype=object)


def _sigmoid(number: Ball) -> Ball:
    """Return 1 / (1 + e**-number): no exponential is larger than 1."""
    power = (-abs(number)).exp()
    return (power if number < 0 else ball(1.0)) / (power + 1)


def _tangent(number: Ball) -> Ball:
    """Return (1 - e**-2|number|) / (1 + e**-2|number|) with the sign of the number."""
    away = abs(number)
    found = -((-away - away).expm1()) / ((-away - away).exp() + 1)
    return found if number >= 0 else -found


def _each(function: Callable[[Ball], Ball], values: Value) -> Objects:
    return np.asarray(np.frompyfunc(function, 1, 1)(values), dtype=object)
