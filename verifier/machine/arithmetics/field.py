"""Field arithmetic: floats as elements of F_p, p = 2^61 - 1, where a correct formula is exactly correct.

Source: identity testing after Schwartz and Zippel; a dyadic number m * 2^e is m times a power of two,
and since 2 has order 61 modulo p that is a rotation of 61 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from verifier.machine.arithmetics.choice import chosen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from fractions import Fraction

    from verifier.machine.numerics import Array

P = (1 << 61) - 1
_P = np.uint64(P)
_LOW31, _LOW30 = np.uint64((1 << 31) - 1), np.uint64((1 << 30) - 1)
_FEW = 64  # up to so many distinct values Python's pow is faster than powering arrays


def reduce61(x: Array) -> Array:
    """Give the representative in [0, p) of a number below 2^64."""
    x = (x & _P) + (x >> np.uint64(61))
    return np.where(x >= _P, x - _P, x)


def add(a: Array, b: Array) -> Array:
    """Sum modulo p."""
    total = a + b
    return np.where(total >= _P, total - _P, total)


def negate(a: Array) -> Array:
    """Negative modulo p."""
    return np.where(a == 0, a, _P - a)


def multiply(a: Array, b: Array) -> Array:
    """Product modulo p from 31-bit halves; no intermediate reaches 2^64."""
    a1, a0, b1, b0 = a >> np.uint64(31), a & _LOW31, b >> np.uint64(31), b & _LOW31
    middle = a0 * b1 + a1 * b0
    total = (
        ((a1 * b1) << np.uint64(1))
        + (middle >> np.uint64(30))
        + ((middle & _LOW30) << np.uint64(31))
        + a0 * b0
    )
    return reduce61(total)


def by_distinct(a: Array, scalar: Callable[[int], int], array: Callable[[Array], Array]) -> Array:
    """Apply a costly function: to each distinct value when there are few, else to the array."""
    a = np.asarray(a)
    distinct, inverse = np.unique(a, return_inverse=True)
    if len(distinct) > _FEW:
        return array(a)
    results = np.array([scalar(int(x)) for x in distinct], dtype=np.uint64)
    return results[inverse].reshape(a.shape)


def inverse(a: Array) -> Array:
    """Inverse modulo p; the inverse of 0 is taken as 0."""
    return by_distinct(a, lambda x: pow(x, P - 2, P), lambda x: _power(x, P - 2))


def root(a: Array) -> Array:
    """a^(2^59), a square root of a wherever a is a square."""
    return by_distinct(a, lambda x: pow(x, 1 << 59, P), lambda x: _power(x, 1 << 59))


def _power(a: Array, exponent: int) -> Array:
    result = np.ones_like(a)
    for bit in f"{exponent:b}":
        result = multiply(result, result)
        if bit == "1":
            result = multiply(result, a)
    return result


def of_floats(values: Array) -> Array:
    """Residues of float64 values; infinities and NaN get fixed residues of no meaning."""
    wide = np.asarray(values, dtype=np.float64)
    finite = np.where(np.isfinite(wide), wide, 0.0)
    mantissa, exponent = np.frexp(np.abs(finite))
    whole = np.ldexp(mantissa, 53).astype(np.uint64)
    shift = ((exponent.astype(np.int64) - 53) % 61).astype(np.uint64)
    residue = reduce61(((whole << shift) & _P) | (whole >> (np.uint64(61) - shift)))
    residue = np.where(np.signbit(finite), negate(residue), residue)
    return np.where(
        np.isfinite(wide), residue, hashed("not finite", np.asarray(np.signbit(wide), dtype=np.uint64))
    )


def of_integers(values: Array) -> Array:
    """Residues of integers."""
    if values.dtype.kind == "u":
        return reduce61(values.astype(np.uint64))
    wide = values.astype(np.int64)
    magnitude = reduce61(np.where(wide < 0, np.uint64(0) - wide.astype(np.uint64), wide.astype(np.uint64)))
    return np.where(wide < 0, negate(magnitude), magnitude)


def of_fraction(value: Fraction) -> int:
    """Residue of a rational."""
    return value.numerator * pow(value.denominator, -1, P) % P


def hashed(name: str, *operands: Array) -> Array:
    """Give an opaque function of its arguments: equal arguments, equal residues, and nothing more."""
    mixed: Any = np.uint64(
        sum((n + 1) * c for n, c in enumerate(name.encode())) * 0x9E3779B97F4A7C15 & (2**64 - 1)
    )
    for operand in operands:
        mixed = (mixed ^ operand) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = mixed ^ (mixed >> np.uint64(29))
    return reduce61(np.asarray(mixed))


@dataclass(frozen=True, kw_only=True)
class Field:
    """Slots are residues; `constants` declares what a float literal stands for (0.001f for 1/1000)."""

    name: str = "field"
    dtype: Any = np.uint64
    constants: Mapping[float, Fraction] = field(default_factory=dict)

    def moduli(self) -> int:
        """Return the prime."""
        return P

    def lift(self, values: Array, kind: str) -> Array:
        """Map floats exactly, declared constants to their rationals."""
        if kind == "integer":
            return of_integers(values)
        wide = values.astype(np.float64)
        residue = of_floats(wide)
        for constant, meaning in self.constants.items():
            residue = np.where(wide == constant, np.uint64(of_fraction(meaning)), residue)
        return residue

    def apply(
        self, name: str, kind: str, result: Array, floats: tuple[Array, ...], slots: tuple[Array, ...]
    ) -> Array:
        """Compute modulo p; transcendental functions are opaque."""
        del kind
        a = slots[0]
        if (picked := chosen(name, result, floats, slots)) is not None:
            return np.asarray(picked)
        rules: dict[str, Callable[[], Array]] = {
            "add": lambda: add(a, slots[1]),
            "sub": lambda: add(a, negate(slots[1])),
            "mul": lambda: multiply(a, slots[1]),
            "fma": lambda: add(multiply(a, slots[1]), slots[2]),
            "mad": lambda: add(multiply(a, slots[1]), slots[2]),
            "div": lambda: multiply(a, inverse(slots[1])),
            "divfma": lambda: add(multiply(a, inverse(slots[1])), slots[2]),
            "rcp": lambda: inverse(a),
            "sqrt": lambda: root(a),
            "rsqrt": lambda: inverse(root(a)),
            "neg": lambda: negate(a),
            "abs": lambda: np.where(np.signbit(floats[0]), negate(a), a),
            "cvt": lambda: np.broadcast_to(a, np.shape(result)),
        }
        if name in rules:
            return np.asarray(rules[name]())
        opaque = hashed(name, *slots)
        return np.where(result == 0, np.uint64(0), opaque)


def build(**settings: Any) -> Field:
    """Make the arithmetic."""
    return Field(**settings)
