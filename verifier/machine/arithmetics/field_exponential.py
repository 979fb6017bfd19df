"""Field arithmetic with exponentials: values modulo q = 2p + 1, exponents modulo p, and 2^a as 4^a.

4 has order p modulo the safe prime q, so 4^(a + b) = 4^a * 4^b holds exactly; an exponential of an
exponential has no meaning and gets an opaque residue. Source: the construction of the Mirage verifier.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from verifier.machine.arithmetics import field as plain
from verifier.machine.arithmetics.choice import chosen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from fractions import Fraction

    from verifier.machine.numerics import Array

EXPONENTS = 1073740571  # the Sophie Germain prime p
VALUES = 2 * EXPONENTS + 1
_MODULI = {"value": np.uint64(VALUES), "exponent": np.uint64(EXPONENTS)}
DTYPE = np.dtype([("value", np.uint64), ("exponent", np.uint64)])


def pair(value: Array, exponent: Array) -> Array:
    """Put both residues together."""
    result = np.empty(np.broadcast_shapes(np.shape(value), np.shape(exponent)), dtype=DTYPE)
    result["value"], result["exponent"] = value, exponent
    return result


def each(function: Callable[..., Array], *slots: Array) -> Array:
    """Apply a function of (modulus, residues) to both parts."""
    return pair(*(function(m, *(s[part] for s in slots)) for part, m in _MODULI.items()))


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


def inverse(modulus: np.uint64, a: Array) -> Array:
    """Inverse modulo a prime."""
    m = int(modulus)
    return plain.by_distinct(a, lambda x: pow(x, m - 2, m), lambda x: power(x, m - 2, modulus))


def root(modulus: np.uint64, a: Array) -> Array:
    """Square root of squares: both primes are 3 modulo 4."""
    m = int(modulus)
    return plain.by_distinct(a, lambda x: pow(x, (m + 1) // 4, m), lambda x: power(x, (m + 1) // 4, modulus))


def of_floats(modulus: np.uint64, values: Array) -> Array:
    """Residues of dyadic numbers."""
    finite = np.where(np.isfinite(values), values, 0.0)
    mantissa, exponent = np.frexp(np.abs(finite))
    whole = np.ldexp(mantissa, 53).astype(np.uint64) % modulus
    scale = (exponent.astype(np.int64) - 53) % (int(modulus) - 1)
    residue = whole * power(np.uint64(2), scale.astype(np.uint64), modulus) % modulus
    residue = np.where(np.signbit(finite) & (residue != 0), modulus - residue, residue)
    return np.where(
        np.isfinite(values),
        residue,
        plain.hashed("not finite", np.signbit(values).astype(np.uint64)) % modulus,
    )


@dataclass(frozen=True, kw_only=True)
class FieldExponential:
    """Slots are pairs of residues; `constants` as in `field`."""

    name: str = "field_exponential"
    dtype: Any = DTYPE
    constants: Mapping[float, Fraction] = field(default_factory=dict)

    def lift(self, values: Array, kind: str) -> Array:
        """Map floats exactly, declared constants to their rationals."""
        if kind == "integer":
            parts = [(values.astype(np.int64) % int(m)).astype(np.uint64) for m in _MODULI.values()]
            return pair(*parts)
        wide = np.asarray(values.astype(np.float64))
        parts = []
        for modulus in _MODULI.values():
            residue = of_floats(modulus, wide)
            for constant, meaning in self.constants.items():
                m = int(modulus)
                exact = meaning.numerator * pow(meaning.denominator, -1, m) % m
                residue = np.where(wide == constant, np.uint64(exact), residue)
            parts.append(residue)
        return pair(*parts)

    def apply(
        self, name: str, kind: str, result: Array, floats: tuple[Array, ...], slots: tuple[Array, ...]
    ) -> Array:
        """Compute modulo both primes."""
        del kind
        if (picked := chosen(name, result, floats, slots)) is not None:
            return np.asarray(picked)
        if name == "ex2":
            return self.exponential(floats[0], slots[0])
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
            "cvt": lambda m, a: a,  # noqa: ARG005
        }
        if name in rules:
            return each(rules[name], *slots)
        return each(lambda m, *xs: np.where(result == 0, np.uint64(0), plain.hashed(name, *xs) % m), *slots)

    def exponential(self, argument: Array, slot: Array) -> Array:
        """4^a in the values, nothing meaningful in the exponents; 2^-inf is 0."""
        value = power(np.uint64(4), slot["exponent"], _MODULI["value"])
        opaque = plain.hashed("ex2", slot["exponent"]) % _MODULI["exponent"]
        zero = np.isneginf(argument)
        return pair(np.where(zero, np.uint64(0), value), np.where(zero, np.uint64(0), opaque))


def build(**settings: Any) -> FieldExponential:
    """Make the arithmetic."""
    return FieldExponential(**settings)
