"""One value of affine arithmetic, and how an elementwise operation takes large values by blocks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

import numpy as np

from verifier.arithmetic.blocks import Tile, Whole, blocks, cut, is_large
from verifier.arithmetic.formats import Array


class AffineOperations(Protocol):
    """What is computed with such values, of rows and columns."""

    rows: int
    columns: int

    def add(self, a: Affine, b: Affine, sign: float) -> Affine:
        """Return fl(a + sign * b)."""

    def multiply(self, a: Affine, b: Affine) -> Affine:
        """Return fl(a * b)."""

    def divide(self, a: Affine, b: Affine) -> Affine:
        """Return fl(a / b)."""

    def scaled(self, a: Affine, factor: float) -> Affine:
        """Return the exact multiple by a power of two or minus one."""

    def within(self, block: Tile, shape: tuple[int, int]) -> AffineOperations:
        """Return the operations on a block of an array (rows, columns)."""


@dataclass(frozen=True, kw_only=True)
class Affine:
    """One value of a formula for all elements; see the module.

    `reasons` says why elements have no bound, if some have none.
    """

    numbers: AffineOperations
    centre: Array
    slack: Array
    symbols: Mapping[str, Array]
    rest: Array
    reasons: frozenset[str] = frozenset()

    @functools.cached_property
    def magnitude(self) -> Array:
        """Upper bound on the exact value."""
        return np.abs(self.centre) + self.slack

    @functools.cached_property
    def total(self) -> Array:
        """Bound on |computed - exact|."""
        total = self.rest
        for coefficient in self.symbols.values():
            total = total + np.abs(coefficient)
        return total

    def __add__(self, other: Affine) -> Affine:
        """Return the rounded sum."""
        return self.numbers.add(self, other, 1.0)

    def __sub__(self, other: Affine) -> Affine:
        """Return the rounded difference."""
        return self.numbers.add(self, other, -1.0)

    def __mul__(self, other: Affine) -> Affine:
        """Return the rounded product."""
        return self.numbers.multiply(self, other)

    def __truediv__(self, other: Affine) -> Affine:
        """Return the rounded quotient."""
        return self.numbers.divide(self, other)

    def __neg__(self) -> Affine:
        """Return the exact negative."""
        return self.numbers.scaled(self, -1.0)

    @property
    def _arrays(self) -> dict[str, Array]:
        symbols = {f"symbol {name}": coefficient for name, coefficient in self.symbols.items()}
        return {"centre": self.centre, "slack": self.slack, "rest": self.rest, **symbols}

    def _with(
        self, numbers: AffineOperations, arrays: Mapping[str, Array], reasons: frozenset[str]
    ) -> Affine:
        """Return a value of the same symbols."""
        symbols = {name: arrays[f"symbol {name}"] for name in self.symbols}
        parts = {name: arrays[name] for name in ("centre", "slack", "rest")}
        return Affine(numbers=numbers, symbols=symbols, reasons=reasons, **parts)


_Operation = TypeVar("_Operation", bound=Callable[..., Affine])
Given = TypeVar("Given")


def by_blocks(operation: _Operation) -> _Operation:
    """Let an elementwise operation, a method of `AffineOperations`, take large values a block at a time."""

    @functools.wraps(operation)
    def taken(numbers: AffineOperations, *given: object) -> Affine:
        if not is_large((numbers.rows, numbers.columns)):  # neither is what has one element for each entry
            return operation(numbers, *given)
        values = [value for value in given if isinstance(value, Affine)]
        shape = np.broadcast_shapes(*(a.shape for value in values for a in value._arrays.values()))
        if not is_large(shape):
            return operation(numbers, *given)
        rows, columns = shape
        wholes: dict[str, Whole[np.float64]] = {}
        reasons = frozenset[str]()
        for block in blocks((rows, columns)):
            own = numbers.within(block, (rows, columns))
            found = operation(own, *(part_of(one, own, block) for one in given))
            for name, array in found._arrays.items():
                wholes.setdefault(name, Whole((rows, columns))).put(block, array)
            reasons |= found.reasons
        return found._with(numbers, {name: whole.array() for name, whole in wholes.items()}, reasons)

    return cast("_Operation", taken)


def part_of(given: Given, numbers: AffineOperations, block: Tile) -> Given:
    """Return a block of a value; anything else is the same in each."""
    if not isinstance(given, Affine):
        return given
    arrays = {name: cut(array, block) for name, array in given._arrays.items()}
    return cast("Given", given._with(numbers, arrays, given.reasons))
