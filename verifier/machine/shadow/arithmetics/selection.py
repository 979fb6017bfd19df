"""Operations that choose one of their operands: every arithmetic treats them alike, by the float."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from verifier.machine.arithmetic.numerics import Array


def chosen(name: str, result: Array, floats: tuple[Array, ...], shadows: tuple[Array, ...]) -> Array | None:
    """Shadows of `min` and `max`, of the operand that the float run chose; None for other operations."""
    if name not in ("min", "max"):
        return None
    picked: Array = shadows[-1]
    for value, shadow in zip(reversed(floats[:-1]), reversed(shadows[:-1]), strict=True):
        picked = np.where(value == result, shadow, picked)
    return picked


# Adding a float32 from here to there rounds to an integer: CUDA's expf finds its exponent so.
_SHIFTERS = (1.5 * 2.0**23 - 1024, 1.5 * 2.0**23 + 1024)


def rounds_to_integer(addend: Array) -> bool:
    """Tell the constant whose addition chooses the nearest integer."""
    if addend.size != 1:
        return False
    return _SHIFTERS[0] <= abs(float(addend.reshape(-1)[0])) < _SHIFTERS[1]


REORDERED = "reordered"
"""Kind of a conversion from a sum in order to that in the order of torch: it errs, and chooses nothing."""


def chooses_integer(kind: str, result: Array, value: Array) -> bool:
    """Tell the conversion of a float to its own format: to an integral value, or saturating.

    A value of another format has another dtype: a float32 that becomes bfloat16 comes as float64. What torch
    computed in float64 has the dtype of what it stands for, and a kind of its own: `REORDERED`.
    """
    return kind in ("f16", "bf16", "f32", "f64") and value.dtype == result.dtype


CLAMPS = frozenset({"sat", "relu"})
_BEFORE_CLAMPING: dict[str, Callable[..., Array]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "fma": lambda a, b, c: a * b + c,
    "mad": lambda a, b, c: a * b + c,
    "cvt": lambda a: a,
}


def clamped(name: str, modifiers: frozenset[str], result: Array, floats: tuple[Array, ...]) -> Array:
    """Whether `.sat` (to [0, 1]) or `.relu` (to 0 and above) gave a result that the operation does not.

    Float64 holds sums and products of narrower formats with the right sign, and on the right side of 1.
    """
    rule = _BEFORE_CLAMPING.get(name)
    if rule is None:
        answer: Array = (result == 0) | (("sat" in modifiers) & (result == 1))
        return answer
    with np.errstate(over="ignore", invalid="ignore"):
        raw = rule(*(np.asarray(value, dtype=np.float64) for value in floats))
    within = (raw >= 0) & (raw <= 1) if "sat" in modifiers else raw >= 0
    return np.broadcast_to(~within, np.shape(result))


class ClampedByFloat(ABC):
    """An arithmetic in which a modifier matters only where it clamps: the shadow is then the float's lift.

    A rounding mode changes nothing, for shadows are not rounded to the format, and what a clamp changed is no
    result of the formula: it is a constant of it, and its derivative is 0.
    """

    @abstractmethod
    def lift(self, values: Array, kind: str) -> Array:
        """Make the shadows of floats."""

    @abstractmethod
    def apply(
        self, name: str, kind: str, result: Array, floats: tuple[Array, ...], shadows: tuple[Array, ...]
    ) -> Array:
        """Compute the shadow of a result."""

    def modified(  # noqa: PLR0917 (as `apply`, with one more)
        self,
        name: str,
        modifiers: frozenset[str],
        kind: str,
        result: Array,
        floats: tuple[Array, ...],
        shadows: tuple[Array, ...],
    ) -> Array:
        """Compute as ever, but take what a clamp changed from the float."""
        found = self.apply(name, kind, result, floats, shadows)
        if not modifiers & CLAMPS:
            return found
        return np.where(clamped(name, modifiers, result, floats), self.lift(np.asarray(result), kind), found)
