"""What a pure instruction computes: the record of an operation, and the types it works on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from verifier.machine.ptx.syntax import BITS

if TYPE_CHECKING:
    from collections.abc import Callable

# NumPy type that holds a PTX type; bfloat16 and packed types are handled as bit patterns.
DTYPE: dict[str, str] = {
    **{f"{kind}{width}": f"u{width // 8}" for kind in "bu" for width in (8, 16, 32, 64)},
    **{f"s{width}": f"i{width // 8}" for width in (8, 16, 32, 64)},
    "f16": "f2",
    "f32": "f4",
    "f64": "f8",
    "bf16": "u2",
    "f16x2": "u4",
    "bf16x2": "u4",
    "f32x2": "u8",
    "e4m3x2": "u2",
    "e5m2x2": "u2",
    "pred": "?",
}
FLOATS = frozenset({"f16", "bf16", "f32", "f64", "f16x2", "bf16x2", "f32x2"})


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A pure instruction: operand types in, result types out, and a function of numpy arrays.

    `out`: the function is a ufunc that may write to the result in place.
    `moves`: the function gives its one operand as it is. `casts`: it converts it as NumPy does by itself.
    `model`: the function's first argument is the machine's model of approximate instructions.
    `carry_in`, `carry_out`: the condition-code register is an operand, or a result.
    """

    name: str
    sources: tuple[str, ...]
    results: tuple[str, ...]
    function: Callable[..., Any]
    out: bool = False
    moves: bool = False
    casts: bool = False
    model: bool = False
    carry_in: bool = False
    carry_out: bool = False


def type_of(parts: list[str]) -> str:
    """Last part of an opcode that names a type."""
    for part in reversed(parts):
        if part in BITS:
            return part
    return ""


def width_of(name: str) -> int:
    """Bits of a type."""
    return BITS[name]
