"""Lifted arithmetic: the shadow of a rounded float is its float64 self: gradcheck works on any kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.shadow.arithmetics.selection import (
    ClampedByFloat,
    chooses_integer,
    chosen,
    rounds_to_integer,
)
from verifier.machine.shadow.emitter_kind import EmitterKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from verifier.machine.arithmetic.numerics import Array

NAME = "lifted"

_LOG2_E = float(np.float32(math.log2(math.e)))
# Float32 literals that compilers write for irrational constants, and what they stand for. CUDA's expf
# adds the rest of log2(e) in a second fma (0f32A57060): it is nothing where the first part is exact.
_POSITIVE = {
    _LOG2_E: math.log2(math.e),
    float(np.array([0x32A57060], dtype=np.uint32).view(np.float32)[0]): 0.0,
    float(np.float32(math.log(2))): math.log(2),
}
# Compilers fold the sign of exp(-x) into the constant.
LITERALS: dict[float, float] = _POSITIVE | {-number: -meant for number, meant in _POSITIVE.items()}

_BINARY: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
}
# Recognised logarithms, to which a multiple of the logarithm of 2 is added.
_BINARY |= {"log": lambda x, i: np.log(x) + i * math.log(2), "log2": lambda x, i: np.log2(x) + i}
_BINARY |= {"tanhf": lambda x, _: np.tanh(x)}  # recognised likewise
_UNARY: dict[str, Callable[..., Array]] = {
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


_SHADOW = np.dtype(np.float64)


@dataclass(frozen=True, kw_only=True)
class Lifted(ClampedByFloat):
    """Shadows are float64 values; `literals` maps float32 constants to what they approximate.

    `apart` counts the choices (min, max) that the lifted values would have made otherwise than the floats
    by more than a rounding of float16 to the wider side: there the two runs are not of one case.
    """

    name: str = NAME
    emitter: EmitterKind = EmitterKind.SLOTS
    dtype: np.dtype[np.float64] = _SHADOW
    literals: Mapping[float, float] = field(default_factory=lambda: dict(LITERALS))
    apart: list[int] = field(default_factory=lambda: [0])

    def lift(self, values: Array, kind: str) -> Array:
        """Widen exactly, replacing known literals."""
        wide = values.astype(np.float64)
        if kind == "f32" and values.size == 1 and float(wide.reshape(-1)[0]) in self.literals:
            return np.full(wide.shape, self.literals[float(wide.reshape(-1)[0])])
        return wide

    def apply(
        self, name: str, kind: str, result: Array, floats: tuple[Array, ...], shadows: tuple[Array, ...]
    ) -> Array:
        """Compute in float64."""
        a = shadows[0]
        if name in ("add", "sub", "fma") and kind == "f32" and rounds_to_integer(floats[-1]):
            return np.asarray(result, dtype=np.float64)  # x + 1.5 * 2^23: the integer next to x
        if name in _BINARY:
            return np.asarray(_BINARY[name](a, shadows[1]))
        if name in ("fma", "mad"):
            return np.asarray(a * shadows[1] + shadows[2])
        if (picked := chosen(name, result, floats, shadows)) is not None:
            picked = _of_tied(name, result, floats, shadows, picked)
            self._compare(name, picked, shadows)
            return np.asarray(picked)
        if name == "divfma":
            return np.asarray(a / shadows[1] + shadows[2])
        if name in _UNARY:
            return np.asarray(_UNARY[name](a))
        if name == "abs":
            return np.where(np.signbit(floats[0]), -a, a)
        if name == "cvt" and chooses_integer(kind, result, floats[0]):
            return np.where(result == floats[0], a, result)  # to an integral value, or saturating
        if name == "cvt":
            return np.broadcast_to(a, np.shape(result))
        return self.lift(result, "other")

    def _compare(self, name: str, picked: Array, shadows: tuple[Array, ...]) -> None:
        """Count choices of which the float64 values know better."""
        best: Array = (np.fmax if name == "max" else np.fmin).reduce(np.broadcast_arrays(*shadows))
        with np.errstate(invalid="ignore"):
            self.apart[0] += int(np.sum(np.abs(best - picked) > 2.0**-10 * np.abs(best)))


def _of_tied(
    name: str, result: Array, floats: tuple[Array, ...], shadows: tuple[Array, ...], picked: Array
) -> Array:
    """Decide by the lifted values between operands of equal floats, so that every thread decides alike."""
    better: np.ufunc = np.fmax if name == "max" else np.fmin
    equal = [np.where(value == result, shadow, np.nan) for value, shadow in zip(floats, shadows, strict=True)]
    best = better.reduce(np.broadcast_arrays(*equal))
    return np.where(np.isnan(best), picked, best)


def build() -> Lifted:
    """Make the arithmetic."""
    return Lifted()
