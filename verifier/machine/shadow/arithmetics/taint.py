"""Taint: of each value, which of 64 sources it depends on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.shadow.arithmetics.selection import chosen
from verifier.machine.shadow.emitter_kind import EmitterKind

if TYPE_CHECKING:
    from verifier.machine.arithmetic.numerics import Array

NAME = "taint"


_SHADOW = np.dtype(np.uint64)


@dataclass(frozen=True, kw_only=True)
class Taint:
    """Shadows are sets of 64 sources, as bits; a result has those of all operands, a choice those of one."""

    name: str = NAME
    emitter: EmitterKind = EmitterKind.TAINT
    dtype: np.dtype[np.uint64] = _SHADOW

    def lift(self, values: Array, kind: str) -> Array:
        """Constants, and data that are no source, depend on nothing."""
        return np.zeros(np.shape(values), dtype=np.uint64)

    def apply(
        self, name: str, kind: str, result: Array, floats: tuple[Array, ...], shadows: tuple[Array, ...]
    ) -> Array:
        """Unite the sources."""
        picked = chosen(name, result, floats, shadows)
        return np.asarray(reduce(np.bitwise_or, shadows) if picked is None else picked)


def build() -> Taint:
    """Make the arithmetic."""
    return Taint()
