"""Field arithmetic with exponentials: values modulo q = 2p + 1, exponents modulo p, and 2^a as 2^a.

2 has order p modulo the safe prime q (q is 7 modulo 8, so 2 is a square), hence 2^(a + b) = 2^a * 2^b holds
exactly, and 2^k for an integer k is the number 2^k itself. lg2 is the discrete logarithm: the exponent of a
value or of its negative. A value made by ex2 has no exponent residue of meaning, one made by lg2 no value.
Source: the construction of the Mirage verifier for ex2; baby and giant steps (Shanks 1971) for lg2.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.shadow.arithmetics import field as plain
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

    from verifier.machine.arithmetic.numerics import Array

NAME = "field_exponential"

EXPONENTS = 1073740571  # the Sophie Germain prime p
VALUES = 2 * EXPONENTS + 1
_MODULI = {"value": np.uint64(VALUES), "exponent": np.uint64(EXPONENTS)}
DTYPE = np.dtype([("value", np.uint64), ("exponent", np.uint64)])
_DIGIT = 15  # powers of two are looked up in two tables, an exponent's low 15 bits and the rest
_BABY = 1 << 20  # steps in the table of logarithms: 1024 steps are left to each value

_LOG2_E = float(np.float32(1.4426950408889634))
LITERALS: dict[float, Fraction] = {
    float(np.float32(0.6931471805599453)): 1 / Fraction(_LOG2_E),
    float(np.array([0x32A57060], dtype=np.uint32).view(np.float32)[0]): Fraction(0),
}
"""Float32 literals that compilers write: log2(e) stands for itself, ln(2) is its inverse, and the rest of
log2(e) that CUDA's expf adds in a second fma (0f32A57060) is nothing where the first part is exact."""

VANISHED = "ex2 of so small a number that it is 0"
"""Among opaque functions, where a float vanished whose argument was finite."""
UNSIGNED = "lg2 of a number of which only the negative is a power of 2"
"""Among opaque functions: an exponential of that logarithm is the negative of the number."""

AS_THEY_ARE = frozenset({_LOG2_E, float(np.array([0x3BBB989D], dtype=np.uint32).view(np.float32)[0])})
"""Literals of an exponential that round nothing: log2(e), which is itself here, and the factor by which
CUDA's expf finds an integer, which is taken from the float."""
_LN2 = {
    int(m): np.uint64(Fraction(_LOG2_E).denominator * pow(Fraction(_LOG2_E).numerator, -1, int(m)) % int(m))
    for m in _MODULI.values()
}


def pair(value: Array, exponent: Array) -> Array:
    """Put both residues together."""
    result = np.empty(np.broadcast_shapes(np.shape(value), np.shape(exponent)), dtype=DTYPE)
    result["value"], result["exponent"] = value, exponent
    return result


def each(function: Callable[..., Array], *shadows: Array) -> Array:
    """Apply a function of (modulus, residues) to both parts."""
    return pair(*(function(m, *(s[part] for s in shadows)) for part, m in _MODULI.items()))


def power(base: Array, exponent: Array | int, modulus: np.uint64) -> Array:
    """base^exponent modulo a prime below 2^32; exponents may differ by element."""
    exponent = np.asarray(exponent, dtype=np.uint64)
    result = np.ones(np.broadcast_shapes(np.shape(base), exponent.shape), dtype=np.uint64)
    base = np.asarray(base, dtype=np.uint64) % modulus
    while exponent.any():
        result = np.where(exponent & np.uint64(1), result * base % modulus, result)
        base = base * base % modulus
        exponent = exponent >> np.uint64(1)
    return result


@cache
def _powers(base: int, count: int, modulus: int) -> Array:
    """Return base^0 ... base^(count - 1), by doubling the known part."""
    known = np.ones(1, dtype=np.uint64)
    while len(known) < count:
        step = np.uint64(pow(base, len(known), modulus))
        known = np.concatenate([known, known * step % np.uint64(modulus)])
    return known[:count]


def power_of_two(exponent: Array, modulus: np.uint64) -> Array:
    """2^exponent modulo a prime, for exponents in [0, 2^30)."""
    low = _powers(2, 1 << _DIGIT, int(modulus))
    high = _powers(pow(2, 1 << _DIGIT, int(modulus)), 1 << _DIGIT, int(modulus))
    exponent = np.asarray(exponent, dtype=np.uint64)
    mask = np.uint64((1 << _DIGIT) - 1)
    return np.asarray(
        low[(exponent & mask).astype(np.intp)]
        * high[(exponent >> np.uint64(_DIGIT)).astype(np.intp)]
        % modulus
    )


@cache
def _logarithms() -> tuple[Array, Array]:
    """Return the first powers of 2 modulo q in ascending order, and their exponents."""
    powers = _powers(2, _BABY, VALUES)
    order = np.argsort(powers, kind="stable")
    return powers[order], order.astype(np.uint64)


def logarithm_of_values(values: Array) -> Array:
    """Return a modulo p with 2^a = v or 2^a = -v modulo q; 0 for v = 0."""
    values = np.asarray(values, dtype=np.uint64)
    distinct, inverse = np.unique(values, return_inverse=True)
    sorted_powers, exponents = _logarithms()
    left = np.where(_is_power(distinct), distinct, (_MODULI["value"] - distinct) % _MODULI["value"])
    found = np.zeros(len(distinct), dtype=np.uint64)
    open_ = distinct != 0
    back = np.uint64(pow(2, -_BABY, VALUES))
    for step in range(EXPONENTS // _BABY + 1):
        place = np.minimum(np.searchsorted(sorted_powers, left), _BABY - 1)
        hit = open_ & (sorted_powers[place] == left)
        found[hit] = (exponents[place[hit]] + np.uint64(step * _BABY)) % _MODULI["exponent"]
        open_ &= ~hit
        if not open_.any():
            break
        left = left * back % _MODULI["value"]
    return found[inverse].reshape(values.shape)


def _is_power(values: Array) -> Array:
    """Whether values are squares modulo q, which are the powers of 2."""
    answer: Array = power(values, EXPONENTS, _MODULI["value"]) == 1
    return answer


def inverse(modulus: np.uint64, a: Array) -> Array:
    """Inverse modulo a prime; the inverse of 0 is taken as 0."""
    return _power_of_distinct(a, int(modulus) - 2, modulus)


def root(modulus: np.uint64, a: Array) -> Array:
    """Square root of squares: both primes are 3 modulo 4."""
    return _power_of_distinct(a, (int(modulus) + 1) // 4, modulus)


def _power_of_distinct(a: Array, exponent: int, modulus: np.uint64) -> Array:
    """a^exponent, computed once for each distinct value: row statistics stand in many lanes."""
    a = np.asarray(a)
    if a.ndim == 2 and a.shape[1] > 1 and (a == a[:, :1]).all():
        return np.broadcast_to(_power_of_distinct(a[:, :1], exponent, modulus), a.shape)
    distinct, back = np.unique(a, return_inverse=True)
    return power(distinct, exponent, modulus)[back].reshape(a.shape)


def of_floats(modulus: np.uint64, values: Array) -> Array:
    """Residues of dyadic numbers."""
    wide = np.asarray(values, dtype=np.float64)
    parts = plain.parts_of(wide)
    if parts is None:
        return _of_any_floats(modulus, wide)
    whole, exponent, negative = parts
    residue = whole % modulus * _scales(int(modulus))[exponent] % modulus
    answer: Array = np.where(negative & (residue != 0), modulus - residue, residue)
    return answer


@cache
def _scales(modulus: int) -> Array:
    """Return 2^(e - BIAS) for every exponent e that a float64 has."""
    return _powers(2, 2048, modulus) * np.uint64(pow(2, -plain.BIAS, modulus)) % np.uint64(modulus)


def _of_any_floats(modulus: np.uint64, wide: Array) -> Array:
    """Residues of floats of which some are subnormal or not finite."""
    finite = np.where(np.isfinite(wide), wide, 0.0)
    mantissa, exponent = np.frexp(np.abs(finite))
    whole = np.ldexp(mantissa, 53).astype(np.uint64) % modulus
    distinct, back = np.unique(exponent.astype(np.int64) - 53, return_inverse=True)
    scale = np.array([pow(2, int(e), int(modulus)) for e in distinct], dtype=np.uint64)[back]
    residue = whole * scale.reshape(wide.shape) % modulus
    residue = np.where(np.signbit(finite) & (residue != 0), modulus - residue, residue)
    opaque = plain.hashed("not finite", np.asarray(np.signbit(wide), dtype=np.uint64)) % modulus
    return np.where(np.isfinite(wide), residue, opaque)


@dataclass(frozen=True, kw_only=True)
class FieldExponential(ClampedByFloat):
    """Shadows are pairs of residues; `constants` and `opaque` as in `field`."""

    name: str = NAME
    emitter: EmitterKind = EmitterKind.SLOTS
    dtype: np.dtype[np.void] = DTYPE
    constants: Mapping[float, Fraction] = field(default_factory=dict)
    opaque: set[str] = field(default_factory=set, compare=False, repr=False)
    tables: dict[str, Array] = field(default_factory=dict, compare=False, repr=False)

    def moduli(self) -> dict[str, int]:
        """Return the primes by part."""
        return {part: int(m) for part, m in _MODULI.items()}

    def lift(self, values: Array, kind: str) -> Array:
        """Map floats exactly; those next to 1/k, declared constants and known literals to their rationals."""
        if kind == "integer":
            parts = [(values.astype(np.int64) % int(m)).astype(np.uint64) for m in _MODULI.values()]
            return pair(*parts)
        found = lift_by_table(self.tables, self.lift_each, values, kind)
        return self.lift_each(values, kind) if found is None else found

    def lift_each(self, values: Array, kind: str) -> Array:
        """Map floats one by one."""
        wide = np.asarray(values.astype(np.float64))
        whole = plain.fractions_meant(wide)
        parts = []
        for modulus in _MODULI.values():
            residue = of_floats(modulus, wide)
            if whole is not None:
                shares = np.uint64(2) * inverse(modulus, (whole % int(modulus)).astype(np.uint64)) % modulus
                residue = np.where(whole != 0, shares, residue)
            for constant, meaning in {**LITERALS, **self.constants}.items():
                m = int(modulus)
                exact = meaning.numerator * pow(meaning.denominator, -1, m) % m
                if (hits := wide == constant).any():
                    residue = np.where(hits, np.uint64(exact), residue)
            parts.append(residue)
        return pair(*parts)

    def apply(
        self, name: str, kind: str, result: Array, floats: tuple[Array, ...], shadows: tuple[Array, ...]
    ) -> Array:
        """Compute modulo both primes."""
        if (picked := chosen(name, result, floats, shadows)) is not None:
            return np.asarray(picked)
        if name == "ex2":
            if ((result == 0) & np.isfinite(floats[0])).any():
                self.opaque.add(VANISHED)
            return self.exponential(result == 0, shadows[0])
        if name == "lg2":
            return self.logarithm(shadows[0])
        if name in ("log", "log2"):
            return self.shifted_logarithm(name, *shadows)
        if name in ("tanh", "tanhf"):
            return self.hyperbolic_tangent(shadows[0])
        if name in ("add", "sub", "fma") and kind == "f32" and rounds_to_integer(floats[-1]):
            return self.lift(np.asarray(result), "f32")  # the integer next to x: exact as a float
        if name == "cvt" and chooses_integer(kind, result, floats[0]):
            return np.where(result == floats[0], shadows[0], self.lift(np.asarray(result), kind))
        rules: dict[str, Callable[..., Array]] = {
            "add": lambda m, a, b: (a + b) % m,
            "sub": lambda m, a, b: (a + (m - b)) % m,
            "mul": lambda m, a, b: a * b % m,
            "fma": lambda m, a, b, c: (a * b % m + c) % m,
            "mad": lambda m, a, b, c: (a * b % m + c) % m,
            "div": lambda m, a, b: a * inverse(m, b) % m,
            "divfma": lambda m, a, b, c: (a * inverse(m, b) % m + c) % m,
            "rcp": inverse,
            "sqrt": root,
            "rsqrt": lambda m, a: inverse(m, root(m, a)),
            "neg": lambda m, a: (m - a) % m,
            "abs": lambda m, a: np.where(np.signbit(floats[0]), (m - a) % m, a),
            "cvt": lambda m, a: a,
        }
        if name in rules:
            return each(rules[name], *shadows)
        self.opaque.add(name)
        return each(lambda m, *xs: np.where(result == 0, np.uint64(0), plain.hashed(name, *xs) % m), *shadows)

    def exponential(self, zero: Array, shadow: Array) -> Array:
        """2^a in the values, nothing meaningful in the exponents; 0 where the float is: it was masked so."""
        value = power_of_two(shadow["exponent"], _MODULI["value"])
        opaque = plain.hashed("ex2", shadow["exponent"]) % _MODULI["exponent"]
        return pair(np.where(zero, np.uint64(0), value), np.where(zero, np.uint64(0), opaque))

    def hyperbolic_tangent(self, shadow: Array) -> Array:
        """1 - 2 / (e^2a + 1) in the values, nothing meaningful in the exponents."""
        q = _MODULI["value"]
        log2_e = self.lift(np.full((1, 1), _LOG2_E), "f32")["exponent"].reshape(())
        twice = np.uint64(2) * log2_e % _MODULI["exponent"]
        power = power_of_two(shadow["exponent"] * twice % _MODULI["exponent"], q)
        value = (np.uint64(1) + (q - np.uint64(2)) * inverse(q, (power + np.uint64(1)) % q)) % q
        return pair(value, plain.hashed("tanh", shadow["exponent"]) % _MODULI["exponent"])

    def has_logarithm(self, shadow: Array) -> Array:
        """Whether values are powers of 2, and not their negatives."""
        return _is_power(shadow["value"])

    def logarithm(self, shadow: Array) -> Array:
        """Give the exponent of the value, and nothing meaningful as a value."""
        if not (self.has_logarithm(shadow) | (shadow["value"] == 0)).all():
            self.opaque.add(UNSIGNED)
        exponent = logarithm_of_values(shadow["value"])
        return pair(plain.hashed("lg2", shadow["value"]) % _MODULI["value"], exponent)

    def shifted_logarithm(self, name: str, shadow: Array, shift: Array) -> Array:
        """log(x) + i * log(2): the exponent in base 2; in base e by ln(2), the inverse of log2(e)."""
        total = each(lambda m, a, i: (a + i) % m, self.logarithm(shadow), shift)
        return total if name == "log2" else each(lambda m, a: a * _LN2[int(m)] % m, total)


def build(*, constants: Mapping[float, Fraction] | None = None) -> FieldExponential:
    """Make the arithmetic; constants: floats that stand for rationals."""
    return FieldExponential(constants=constants or {})
