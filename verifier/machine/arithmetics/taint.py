"""Taint: 64 tags a value, the inputs on which it depends."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from verifier.machine.arithmetics.choice import chosen

if TYPE_CHECKING:
    from verifier.machine.numerics import Array


@dataclass(frozen=True, kw_only=True)
class Taint:
    """Slots are sets of 64 tags as bits; a result has the tags of all its operands, a choice of one.

    `shadow`: tags go through operations on bits as through any other.
    """

    name: str = "taint"
    shadow: str = "tags"
    dtype: Any = np.uint64

    def lift(self, values: Array, kind: str) -> Array:
        """Constants and untagged data depend on nothing."""
        del kind
        return np.zeros(np.shape(values), dtype=np.uint64)

    def apply(
        self, name: str, kind: str, result: Array, floats: tuple[Array, ...], slots: tuple[Array, ...]
    ) -> Array:
        """Unite the tags."""
        del kind
        picked = chosen(name, result, floats, slots)
        return np.asarray(reduce(np.bitwise_or, slots) if picked is None else picked)


def build(**settings: Any) -> Taint:
    """Make the arithmetic."""
    return Taint(**settings)
