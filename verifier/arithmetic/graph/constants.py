"""Constants of a graph: what their bits say, and operations on them, folded as IEEE 754 rounds them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from verifier.arithmetic.formats import FORMATS, Array, Format
from verifier.arithmetic.graph.graph import Bits

FULL_NAMES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}
"""The names that formats of PTX have elsewhere in the project."""


def format_of(name: str) -> Format:
    """Return the format that PTX calls `name`."""
    return FORMATS[FULL_NAMES[name]]


def decoded(name: str, bits: Bits) -> Array:
    """Return the numbers that bits stand for in the format that PTX calls `name`, as float64."""
    if name == "f64":
        return bits.view(np.float64)
    if name == "f16":
        return bits.astype(np.uint16).view(np.float16).astype(np.float64)
    shift = 16 if name == "bf16" else 0
    with np.errstate(invalid="ignore"):
        return (bits.astype(np.uint32) << np.uint32(shift)).view(np.float32).astype(np.float64)


def encoded(name: str, numbers: Array) -> Bits:
    """Return the bits of numbers that the format PTX calls `name` holds."""
    if name == "f64":
        return np.asarray(numbers, dtype=np.float64).view(np.uint64)
    if name == "f16":
        return np.asarray(numbers, dtype=np.float16).view(np.uint16).astype(np.uint64)
    bits = np.asarray(numbers, dtype=np.float32).view(np.uint32)
    return (bits >> np.uint32(16 if name == "bf16" else 0)).astype(np.uint64)


def nearest(held: Format, exact: Fraction) -> float:
    """Round a nonzero number to nearest, ties to even, with gradual underflow and overflow."""
    sign, size = (-1.0 if exact < 0 else 1.0), abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    spacing = Fraction(2) ** (max(exponent, held.minimum_exponent) - held.precision + 1)
    rounded = round(size / spacing) * spacing  # Python rounds ties of fractions to even
    return sign * (math.inf if rounded > Fraction(held.maximum) else float(rounded))


def folded(family: str, held: Format, operands: Sequence[float]) -> float | None:
    """Return the result of an operation on constants, or None where it is left as it stands.

    NaN and infinite operands are left, and so is what would be NaN, or an extreme of +0 and -0.
    """
    if not all(map(math.isfinite, operands)):
        return None
    if family in {"max", "min"}:
        a, b = operands
        return None if a == b == 0.0 else max(a, b) if family == "max" else min(a, b)
    if family == "add":
        return _sum(held, operands[0], operands[1], *map(Fraction, operands))
    if family == "mul":
        return _product(held, *operands)
    if family == "fma":
        product = Fraction(operands[0]) * Fraction(operands[1])
        sign = math.copysign(1.0, operands[0]) * math.copysign(1.0, operands[1])
        return _sum(held, sign * float(product != 0), operands[2], product, Fraction(operands[2]))
    if family == "div" and operands[1] != 0.0:
        quotient = Fraction(operands[0]) / Fraction(operands[1])
        sign = math.copysign(1.0, operands[0]) * math.copysign(1.0, operands[1])
        return math.copysign(nearest(held, quotient), sign) if quotient else math.copysign(0.0, sign)
    if family == "narrow":
        return (
            math.copysign(nearest(held, Fraction(operands[0])), operands[0]) if operands[0] else operands[0]
        )
    return None


def rounds_product(held: Format, factors: Array) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return which rows of factors (m, 2), NaN where no constant, have a product that is rounded."""
    found = np.zeros(len(factors), dtype=np.bool_)
    for row in np.flatnonzero(np.isfinite(factors).all(axis=1)).tolist():
        a, b = factors[row].tolist()
        rounded, exact = _product(held, a, b), Fraction(a) * Fraction(b)
        found[row] = not math.isfinite(rounded) or Fraction(rounded) != exact
    return found


_COMPARES: dict[str, Callable[[float, float], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt,
    "ge": operator.ge,
}  # fmt: skip


def holds(comparison: str, a: float, b: float) -> bool | None:
    """Return whether a comparison that PTX calls so holds; None for NaN, and what is unknown."""
    if math.isnan(a) or math.isnan(b):
        return None
    known = _COMPARES.get(comparison.removesuffix("u"))
    return None if known is None else known(a, b)


def _sum(held: Format, a: float, b: float, exact_a: Fraction, exact_b: Fraction) -> float:
    """Round a sum; the sign of a zero is that of both terms where they agree, else positive."""
    total = exact_a + exact_b
    if total:
        return nearest(held, total)
    negative = exact_a == 0 and math.copysign(1.0, a) < 0 and math.copysign(1.0, b) < 0
    return -0.0 if negative else 0.0


def _product(held: Format, a: float, b: float) -> float:
    sign = math.copysign(1.0, a) * math.copysign(1.0, b)
    exact = Fraction(a) * Fraction(b)
    return math.copysign(nearest(held, exact), sign) if exact else math.copysign(0.0, sign)
