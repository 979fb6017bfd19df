"""Field arithmetic: floats as elements of F_p, p = 2^61 - 1, where a correct formula is exactly correct.

Source: identity testing after Schwartz and Zippel; a dyadic number m * 2^e is m times a power of two,
and since 2 has order 61 modulo p that is a rotation of 61 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.shadow.arithmetics.half_tables import lift_by_table
from verifier.machine.shadow.arithmetics.selection import (
    ClampedByFloat,
    chooses_integer,
    chosen,
    rounds_to_integer,
)
from verifier.machine.shadow.emitter_kind import EmitterKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from fractions import Fraction

    from verifier.machine.arithmetic.numerics import Array, ArrayOrNumber

NAME = "field"

P = (1 << 61) - 1
_P = np.uint64(P)
_1, _30, _31, _52, _61, _63 = (np.uint64(n) for n in (1, 30, 31, 52, 61, 63))
_LOW11, _LOW30, _LOW31, _LOW52 = (np.uint64((1 << n) - 1) for n in (11, 30, 31, 52))
_ALL_ONES = 0x7FF  # exponent of infinities and NaN in float64
BIAS = 1075  # of a float64's exponent, where its significand is a whole number of 53 bits
_SHIFTS = ((np.arange(2048) - BIAS) % 61).astype(np.uint64)  # 2^(e - BIAS) rotates by that many bits
EXACT_BITS = 12
"""Bits of a constant that is exact: one that was rounded is hardly ever so short."""
NEAR = 2.0**-22
"""Of significands in [1/2, 1): four units of float32 in the last place, as far as a slip of ulps goes."""
WHOLE = 1 << 13
"""A float next to 1/k or 2/k stands for that fraction for whole k up to here: far more than a row of an
ordinary case has columns, and so few that neighbouring fractions are thousands of ulps apart."""
_FEW = 64  # up to so many distinct values Python's pow is faster than powering arrays


def reduce61(x: Array) -> Array:
    """Give the representative in [0, p) of a number below 2^64."""
    x = (x & _P) + (x >> _61)
    return np.minimum(x, x - _P)  # below p the difference wraps round to a large number


def add(a: Array, b: Array) -> Array:
    """Sum modulo p."""
    total = a + b
    answer: Array = np.minimum(total, total - _P)
    return answer


def subtract(a: Array, b: Array) -> Array:
    """Difference modulo p."""
    total = a - b
    answer: Array = np.minimum(total, total + _P)
    return answer


def negate(a: Array) -> Array:
    """Negative modulo p."""
    opposite = _P - a
    answer: Array = np.minimum(opposite, opposite - _P)
    return answer


def multiply(a: ArrayOrNumber, b: Array) -> Array:
    """Product modulo p from 31-bit halves; no intermediate reaches 2^64.

    Works in few temporaries: passes over memory are what a product costs.
    """
    a, b = np.asarray(a), np.asarray(b)
    shape = np.broadcast_shapes(a.shape, b.shape)
    a, b = (x if x.ndim else x.reshape(1) for x in (a, b))
    a1, a0, b1, b0 = a >> _31, a & _LOW31, b >> _31, b & _LOW31
    middle, spare = a0 * b1, a1 * b0
    middle += spare
    total = a1 * b1
    total <<= _1
    total += np.right_shift(middle, _30, out=spare)
    middle &= _LOW30
    middle <<= _31
    total += middle
    total += np.multiply(a0, b0, out=spare)
    np.right_shift(total, _61, out=spare)
    total &= _P
    total += spare
    np.subtract(total, _P, out=spare)
    return np.minimum(total, spare, out=total).reshape(shape)


def by_distinct(a: Array, scalar: Callable[[int], int], array: Callable[[Array], Array]) -> Array:
    """Apply a costly function: to each distinct value when there are few, else to the array."""
    a = np.asarray(a)
    if a.ndim == 2 and a.shape[1] > 1 and (a == a[:, :1]).all():  # one value in all threads of a block
        return np.broadcast_to(by_distinct(a[:, :1], scalar, array), a.shape)
    distinct, inverse = np.unique(a, return_inverse=True)
    if len(distinct) > _FEW:
        return array(a)
    results = np.array([scalar(int(x)) for x in distinct], dtype=np.uint64)
    return results[inverse].reshape(a.shape)


def inverse(a: Array) -> Array:
    """Inverse modulo p; the inverse of 0 is taken as 0."""
    return by_distinct(a, lambda x: pow(x, P - 2, P), _inverses)


def _inverses(a: Array) -> Array:
    """Invert all at once: products up a binary tree, one inverse at its top, and down again."""
    flat = np.where(a == 0, _1, a).reshape(-1)
    levels = []
    while len(flat) > 1:
        if len(flat) % 2:
            flat = np.append(flat, _1)
        levels.append(flat)
        flat = multiply(flat[0::2], flat[1::2])
    inverted = np.array([pow(int(x), P - 2, P) for x in flat], dtype=np.uint64)
    for level in reversed(levels):
        below = np.empty_like(level)
        inverted = inverted[: len(level) // 2]
        below[0::2], below[1::2] = multiply(inverted, level[1::2]), multiply(inverted, level[0::2])
        inverted = below
    return np.where(a == 0, a, inverted[: a.size].reshape(a.shape))


def root(a: Array) -> Array:
    """a^(2^59), a square root of a wherever a is a square."""
    return by_distinct(a, lambda x: pow(x, 1 << 59, P), _roots)


def _roots(a: Array) -> Array:
    for _ in range(59):
        a = multiply(a, a)
    return a


def of_floats(values: Array) -> Array:
    """Residues of float64 values; infinities and NaN get fixed residues of no meaning."""
    wide = np.asarray(values, dtype=np.float64)
    parts = parts_of(wide)
    if parts is None:
        return _of_any_floats(wide)
    whole, exponent, negative = parts
    shift = _SHIFTS[exponent]
    residue = (whole << shift) & _P
    residue |= whole >> (_61 - shift)
    answer: Array = np.where(negative & (residue != 0), _P - residue, residue)
    return answer


def parts_of(wide: Array) -> tuple[Array, Array, Array] | None:
    """Split float64 values into +-whole * 2^(exponent - BIAS); None if one is subnormal or not finite."""
    bits = np.ascontiguousarray(wide).view(np.uint64).reshape(wide.shape)
    exponent = ((bits >> _52) & _LOW11).astype(np.intp)
    if ((exponent == _ALL_ONES) | ((exponent == 0) & (bits << _1 != 0))).any():
        return None
    whole = (bits & _LOW52) | ((exponent != 0).astype(np.uint64) << _52)
    return whole, exponent, bits >> _63 != 0


def _of_any_floats(wide: Array) -> Array:
    """Residues of floats of which some are subnormal or not finite."""
    finite = np.where(np.isfinite(wide), wide, 0.0)
    mantissa, exponent = np.frexp(np.abs(finite))
    whole = np.ldexp(mantissa, 53).astype(np.uint64)
    shift = ((exponent.astype(np.int64) - 53) % 61).astype(np.uint64)
    residue = reduce61(((whole << shift) & _P) | (whole >> (_61 - shift)))
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


def next_to_exact(numbers: ArrayOrNumber) -> Array:
    """Whether numbers are short ones, or slips of a few units in the last place away from one."""
    significands, _ = np.frexp(np.abs(numbers))
    answer: Array = np.abs(significands - np.rint(np.ldexp(significands, EXACT_BITS)) / 2**EXACT_BITS) <= NEAR
    return answer


def reciprocals(wide: ArrayOrNumber) -> Array | None:
    """Return whole numbers k, int64, where floats are no dyadic number but next to 2/k; 0 elsewhere.

    Next to it: its rounding to float32 or float64. 2/k is 1/(k/2) where k is even. None where there are none.
    """
    size = np.abs(wide)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        whole = np.rint(2.0 / size)
    found = (whole > 1) & (whole <= 2 * WHOLE)
    if not found.any():
        return None
    whole = np.where(found, whole, 1.0).astype(np.int64)
    exact = 2.0 / whole
    found &= ((size == exact) | (size == exact.astype(np.float32))) & (whole & (whole - 1) != 0)
    return np.where(found, np.where(np.signbit(wide), -whole, whole), 0) if found.any() else None


def fractions_meant(wide: Array) -> Array | None:
    """Return `reciprocals`, but for floats that may as well be a short number with a slip."""
    whole = reciprocals(wide)
    return None if whole is None else np.where(next_to_exact(wide), 0, whole)


def hashed(name: str, *operands: Array) -> Array:
    """Give an opaque function of its arguments: equal arguments, equal residues, and nothing more."""
    mixed: Array | np.uint64 = np.uint64(
        sum((n + 1) * c for n, c in enumerate(name.encode())) * 0x9E3779B97F4A7C15 & (2**64 - 1)
    )
    shape = np.broadcast_shapes(*(np.shape(operand) for operand in operands))
    for operand in operands:
        mixed = (mixed ^ np.atleast_1d(operand)) * np.uint64(0xBF58476D1CE4E5B9)  # arrays wrap silently
        mixed = mixed ^ (mixed >> np.uint64(29))
    return reduce61(np.asarray(mixed)).reshape(shape)


_SHADOW = np.dtype(np.uint64)


@dataclass(frozen=True, kw_only=True)
class FieldArithmetic(ClampedByFloat):
    """Shadows are residues; `constants` declares what a float literal stands for (0.001f for 1/1000).

    `opaque` collects the names of the functions that were computed and have no rule here.
    """

    name: str = NAME
    emitter: EmitterKind = EmitterKind.SLOTS
    dtype: np.dtype[np.uint64] = _SHADOW
    constants: Mapping[float, Fraction] = field(default_factory=dict)
    opaque: set[str] = field(default_factory=set, compare=False, repr=False)
    tables: dict[str, Array] = field(default_factory=dict, compare=False, repr=False)

    def moduli(self) -> int:
        """Return the prime."""
        return P

    def lift(self, values: Array, kind: str) -> Array:
        """Map floats exactly, but those next to 1/k and declared constants to their rationals."""
        if kind == "integer":
            return of_integers(values)
        found = lift_by_table(self.tables, self.lift_each, values, kind)
        return self.lift_each(values, kind) if found is None else found

    def lift_each(self, values: Array, kind: str) -> Array:
        """Map floats one by one."""
        wide = values.astype(np.float64)
        residue = of_floats(wide)
        if (whole := fractions_meant(wide)) is not None:
            residue = np.where(whole != 0, multiply(np.uint64(2), inverse(of_integers(whole))), residue)
        for constant, meaning in self.constants.items():
            if (hits := wide == constant).any():
                residue = np.where(hits, np.uint64(of_fraction(meaning)), residue)
        return residue

    def apply(
        self, name: str, kind: str, result: Array, floats: tuple[Array, ...], shadows: tuple[Array, ...]
    ) -> Array:
        """Compute modulo p; transcendental functions are opaque."""
        a = shadows[0]
        if (picked := chosen(name, result, floats, shadows)) is not None:
            return np.asarray(picked)
        if name in ("add", "sub", "fma") and kind == "f32" and rounds_to_integer(floats[-1]):
            return self.lift(np.asarray(result), kind)  # the integer next to x: exact as a float
        if name == "cvt" and chooses_integer(kind, result, floats[0]):
            same = (result == floats[0]) | np.isnan(result)
            return np.where(same, a, self.lift(np.asarray(result), kind))
        rules: dict[str, Callable[[], Array]] = {
            "add": lambda: add(a, shadows[1]),
            "sub": lambda: subtract(a, shadows[1]),
            "mul": lambda: multiply(a, shadows[1]),
            "fma": lambda: add(multiply(a, shadows[1]), shadows[2]),
            "mad": lambda: add(multiply(a, shadows[1]), shadows[2]),
            "div": lambda: multiply(a, inverse(shadows[1])),
            "divfma": lambda: add(multiply(a, inverse(shadows[1])), shadows[2]),
            "rcp": lambda: inverse(a),
            "sqrt": lambda: root(a),
            "rsqrt": lambda: inverse(root(a)),
            "neg": lambda: negate(a),
            "abs": lambda: np.where(np.signbit(floats[0]), negate(a), a),
            "cvt": lambda: a if np.shape(a) == np.shape(result) else np.broadcast_to(a, np.shape(result)),
        }
        if name in rules:
            return np.asarray(rules[name]())
        self.opaque.add(name)
        return np.where(result == 0, np.uint64(0), hashed(name, *shadows))


def build(*, constants: Mapping[float, Fraction] | None = None) -> FieldArithmetic:
    """Make the arithmetic; constants: floats that stand for rationals."""
    return FieldArithmetic(constants=constants or {})
