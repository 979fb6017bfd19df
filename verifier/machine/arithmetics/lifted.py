"""Lifted arithmetic: beside every rounded float its float64 self, so that gradcheck works on any kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from verifier.machine.arithmetics.choice import chosen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from verifier.machine.numerics import Array

# Float32 literals that compilers write for irrational constants, and what they stand for.
LITERALS: dict[float, float] = {
    float(np.float32(math.log2(math.e))): math.log2(math.e),
    float(np.float32(math.log(2))): math.log(2),
}

_UNARY: dict[str, Any] = {
    "neg": np.negative,
    "rcp": np.reciprocal,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


@dataclass(frozen=True, kw_only=True)
class Lifted:
    """Slots are float64 values; `literals` maps float32 constants to what they approximate."""

    name: str = "lifted"
    dtype: Any = np.float64
    literals: Mapping[float, float] = field(default_factory=lambda: dict(LITERALS))

    def lift(self, values: Array, kind: str) -> Array:
        """Widen exactly, replacing known literals."""
        wide = values.astype(np.float64)
        if kind == "f32" and values.size == 1 and float(wide.reshape(-1)[0]) in self.literals:
            return np.full(wide.shape, self.literals[float(wide.reshape(-1)[0])])
        return wide

    def apply(
        self, name: str, kind: str, result: Array, floats: tuple[Array, ...], slots: tuple[Array, ...]
    ) -> Array:
        """Compute in float64."""
        del kind
        a = slots[0]
        if (picked := chosen(name, result, floats, slots)) is not None:
            return np.asarray(picked)
        if name in ("add", "sub", "mul", "div"):
            ufunc: Any = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[name]
            return np.asarray(ufunc(a, slots[1]))
        if name in ("fma", "mad"):
            return np.asarray(a * slots[1] + slots[2])
        if name == "divfma":
            return np.asarray(a / slots[1] + slots[2])
        if name in _UNARY:
            return np.asarray(_UNARY[name](a))
        if name == "abs":
            return np.where(np.signbit(floats[0]), -a, a)
        if name == "cvt":
            return np.broadcast_to(a, np.shape(result))
        return self.lift(result, "other")


def build(**settings: Any) -> Lifted:
    """Make the arithmetic."""
    return Lifted(**settings)
