"""From an opcode to the operation of the family that knows it."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from verifier.machine.operations import bits, comparison, conversion, floating, half, integer
from verifier.machine.ptx.syntax import BITS

if TYPE_CHECKING:
    from verifier.machine.operations.operation import Operation

# Every word behind the name of a pure opcode that some family understands: one that none knows may change
# what the instruction computes (`.oob`, `.rs`), and is not passed over.
# fmt: off
MODIFIERS = frozenset({
    *BITS,
    "rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi", "ftz", "sat", "satfinite", "relu", "NaN",
    "approx", "full", "lo", "hi", "wide", "cc", "three", "xorsign", "abs",
    "eq", "ne", "lt", "le", "gt", "ge", "ls", "hs", "num", "nan", "equ", "neu", "ltu", "leu", "gtu", "geu",
    "and", "or", "xor", "wrap", "clamp", "l", "r", "shiftamt",
    "finite", "infinite", "number", "notanumber", "normal", "subnormal",
})
# fmt: on


@lru_cache(maxsize=4096)
def resolve(opcode: str) -> Operation | None:
    """Find the operation of a pure opcode, or None when no family knows it."""
    parts = opcode.split(".")
    if not MODIFIERS.issuperset(parts[1:]):
        return None
    for family in (floating, integer, bits, comparison, conversion, half):
        operation: Operation | None = family.resolve(parts)
        if operation is not None:
            return operation
    return None
