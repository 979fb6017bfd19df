"""Number type that runs a formula on what is known of its operands: which results an unknown one reaches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verifier.arithmetic.abstract_number import Value
from verifier.arithmetic.error_free.numpy_or_torch import Arrays
from verifier.oracle.enclosure import Mask
from verifier.oracle.formulas.unrounded import Unrounded


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Which elements have no exact value, as NaN or an infinity is among what they are made of."""

    lost: Mask

    def __add__(self, other: Reached) -> Reached:
        """Return what either reaches."""
        return Reached(lost=self.lost | other.lost)

    def __neg__(self) -> Reached:
        """Return the same."""
        return self

    __sub__ = __mul__ = __truediv__ = __add__


@dataclass(frozen=True, kw_only=True)
class ReachedNumbers(Unrounded):
    """`verifier.arithmetic.abstract_number.Numbers` on masks."""

    rows: int
    columns: int
    parameter: Arrays = "columns"

    def lift(self, lost: Mask) -> Reached:
        """Return operands of which some are lost."""
        return Reached(lost=lost)

    def constant(self, _number: float) -> Reached:
        """Return a number that is known."""
        return Reached(lost=np.zeros((1, 1), dtype=np.bool_))

    def moments(self, x: Value) -> tuple[Value, Value]:
        """Return what an element of a row reaches: both of its moments."""
        return self.sum(x), self.sum(x)

    def sum(self, value: Value) -> Reached:
        """Return which sums over rows are reached, (rows, 1)."""
        return Reached(lost=np.asarray(self._full(value).any(axis=1, keepdims=True)))

    def maximum(self, value: Value) -> Reached:
        """Return the same."""
        return self.sum(value)

    def parameter_sum(self, value: Value, _held: str | None = None, /, **_: bool) -> Reached:
        """Return which sums over the entries of weight are reached, (1, entries)."""
        wide = self._full(value)
        if isinstance(self.parameter, str):
            axis = 0 if self.parameter == "columns" else 1
            return Reached(lost=np.asarray(wide.any(axis=axis)).reshape(1, -1))
        index = np.asarray(self.parameter, dtype=np.int64)
        found = np.bincount(index.ravel(), weights=wide.ravel().astype(np.float64))
        return Reached(lost=(found > 0).reshape(1, -1))

    def rsqrt(self, value: Value) -> Value:
        """Return the same."""
        return value

    exp = log = sigmoid = rsqrt

    def tanh(self, value: Value, **_: bool) -> Value:
        """Return the same."""
        return value

    def totals(self, *values: Value, **_: bool) -> Reached:
        """Return which sums of all elements are reached, (1, how many)."""
        return Reached(lost=np.array([[bool(value.lost.any()) for value in values]]))

    def entry(self, value: Value, number: int) -> Reached:
        """Return whether one number of a parameter is lost, (1, 1)."""
        return Reached(lost=value.lost[:, number : number + 1])

    def _full(self, value: Value) -> Mask:
        return np.broadcast_to(value.lost, (self.rows, self.columns))
