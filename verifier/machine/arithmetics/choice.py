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
