"""What all numbers have in common that round nothing."""

from __future__ import annotations

from typing import Protocol

from verifier.arithmetic.abstract_number import Numbers, Value


class Unrounded(Numbers, Protocol):
    """Answers of `verifier.arithmetic.abstract_number.Numbers` that are about roundings, and what follows.

    A class that inherits it defines the operations themselves, on rows of `columns` elements.
    """

    columns: int

    @property
    def rounds(self) -> bool:
        """No."""
        return False

    def lift(self, array: Value) -> Value:
        """Return the numbers that an operand is."""

    def saved_moments(self, x: Value, /) -> tuple[Value, Value]:
        """Return the same: nothing is rounded when it is saved."""
        return self.moments(x)

    def stepped_moments(self, x: Value) -> tuple[Value, Value]:
        """Return the same: nothing is rounded."""
        return self.moments(x)

    def mean_parts(self, x: Value, /) -> tuple[Value, Value]:
        """Return the mean and nothing."""
        return self.moments(x)[0], self.constant(0.0)

    def mean(self, value: Value) -> Value:
        """Return the mean over each row, (rows, 1)."""
        return self.sum(value) / self.count()

    def count(self) -> Value:
        """Return the number of columns."""
        return self.constant(float(self.columns))

    def online_sum(self, x: Value, *, base_two: bool = False) -> Value:
        """Return the sum of exp(x - max(x)): where nothing is rounded, the order does not matter."""
        away = x - self.maximum(x)
        return self.sum(self.exp2(away) if base_two else self.exp(away))

    def cast(self, value: Value, _role: str, /) -> Value:
        """Return the value."""
        return value

    def share(self, value: Value, _name: str, /, **_: bool) -> Value:
        """Return the value."""
        return value

    def either(self, one: Value, /, *_others: Value) -> Value:
        """Return one of several ways to write the same."""
        return one

    def exp2(self, value: Value) -> Value:
        """Refuse: no canonical form takes two to a power.

        Raises:
            NotImplementedError: always.

        """
        message = f"a power of two, of {value}"
        raise NotImplementedError(message)

    def log2_e(self) -> Value:
        """Refuse: no canonical form takes two to a power.

        Raises:
            NotImplementedError: always.

        """
        message = "log2(e)"
        raise NotImplementedError(message)
