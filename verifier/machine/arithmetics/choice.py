"""Operations that choose one of their operands: every arithmetic treats them alike, by the float."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from verifier.machine.numerics import Array


def chosen(name: str, result: Array, floats: tuple[Array, ...], slots: tuple[Any, ...]) -> Any | None:
    """Slots of `min` and `max`, of the operand that the float run chose; None for other operations."""
    if name not in ("min", "max"):
        return None
    picked: Any = slots[-1]
    for value, slot in zip(reversed(floats[:-1]), reversed(slots[:-1]), strict=True):
        picked = np.where(value == result, slot, picked)
    return picked


# Adding a float32 from here to there rounds to an integer: CUDA's expf finds its exponent so.
_SHIFTERS = (1.5 * 2.0**23 - 1024, 1.5 * 2.0**23 + 1024)


def rounds_to_integer(addend: Array) -> bool:
    """Tell the constant whose addition chooses the nearest integer."""
    if addend.size != 1:
        return False
    return _SHIFTERS[0] <= abs(float(addend.reshape(-1)[0])) < _SHIFTERS[1]


def chooses_integer(kind: str, result: Array, value: Array) -> bool:
    """Tell the conversion of a float to its own format: to an integral value, or saturating."""
    return kind in ("f32", "f64") and value.dtype == result.dtype
