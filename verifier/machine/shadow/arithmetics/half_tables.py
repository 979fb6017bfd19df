"""Lifting floats of 16 bits by a table: there are 65536 of them, and many more in a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.arithmetic import numerics

if TYPE_CHECKING:
    from collections.abc import Callable

    from verifier.machine.arithmetic.numerics import Array

MANY = 2048
"""Values from which a look in the table costs less than its making does, once it is used some times."""


def lift_by_table(
    tables: dict[str, Array], lift: Callable[[Array, str], Array], values: Array, kind: str
) -> Array | None:
    """Shadows of many floats of 16 bits, from tables that are made when first needed; None for other values.

    tables: by kind, kept by the caller. lift: what lifts each value by itself, whatever its neighbours are.
    values: float16, or float32 for `kind` "bf16".
    """
    if values.size < MANY or (kind, values.dtype.name) not in (("f16", "float16"), ("bf16", "float32")):
        return None
    if (table := tables.get(kind)) is None:
        patterns = np.arange(1 << 16, dtype=np.uint16)
        every = patterns.view(np.float16) if kind == "f16" else numerics.decode_bf16(patterns)
        table = tables[kind] = lift(every, kind)
    bits: Array = np.ascontiguousarray(values).view(np.uint16 if kind == "f16" else np.uint32)
    found: Array = np.take(table, bits if kind == "f16" else bits >> np.uint32(16))
    return found
