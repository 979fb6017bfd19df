"""What the operations of expression graphs compute, on float64 arrays that hold numbers of their formats.

Nothing of it is taken from the rules or their folding. Approximate instructions are models that have the
properties that rules and bounds of signs suppose: `div.full` is a product with a reciprocal that is rounded,
powers of 0 and -inf are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from verifier.arithmetic.formats import FORMATS, Array
from verifier.arithmetic.graph.constants import FULL_NAMES
from verifier.arithmetic.simulated import RoundedArithmetic, round_to

__all__ = ["computed", "power", "reciprocal", "rounded", "sum_with_product"]


def rounded(held: str, exact: Array) -> Array:
    """Round numbers of float64 to a format that PTX calls so."""
    return exact if held == "f64" else round_to(FORMATS[FULL_NAMES[held]], exact)


def sum_with_product(held: str, a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c, rounded once."""
    if held != "f64":
        return RoundedArithmetic(format=FORMATS[FULL_NAMES[held]]).multiply_add(a, b, c)
    operands = np.broadcast_arrays(a, b, c)
    found = [_fused(*one) for one in np.stack(operands, axis=-1).reshape(-1, 3).tolist()]
    return np.array(found).reshape(operands[0].shape)


def _fused(a: float, b: float, c: float) -> float:
    if not np.isfinite((a, b, c)).all():
        return a * b + c if not (np.isfinite((a, b)).all()) else c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if not exact:
        product = np.copysign(1.0, a) * np.copysign(1.0, b)
        alike = product == np.copysign(1.0, c) and not (a and b)
        return float(np.copysign(0.0, product)) if alike else 0.0
    try:
        found = float(exact)
    except OverflowError:
        found = np.inf if exact > 0 else -np.inf
    return float(np.copysign(found, 1.0 if exact > 0 else -1.0))


def reciprocal(b: Array) -> Array:
    """Return that of `div.full`: 24 digits, whatever its exponent."""
    fraction, exponent = np.frexp(1.0 / b)
    return np.ldexp(fraction.astype(np.float32).astype(np.float64), exponent)


def power(x: Array) -> Array:
    """Return exponentials before the last product with a power of two is rounded."""
    fraction, exponent = np.frexp(np.exp(np.maximum(x, -700.0)))
    return np.where(x == -np.inf, 0.0, np.ldexp(fraction.astype(np.float32).astype(np.float64), exponent))


def _larger(a: Array, b: Array) -> Array:
    """Return maxima as PTX has them: +0 is above -0, and of NaN and a number the number is taken."""
    return np.where((a == 0.0) & (b == 0.0), np.where(np.signbit(a), b, a), np.fmax(a, b))


_ASKS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "ne": lambda a, b: (a < b) | (a > b), "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}  # fmt: skip


def _asked(comparison: str, a: Array, b: Array) -> Array:
    if comparison.endswith("u"):
        return _ASKS[comparison[:-1]](a, b) | np.isnan(a) | np.isnan(b)
    return _ASKS[comparison](a, b)


_EXACT: dict[str, Callable[..., Array]] = {
    "add": np.add, "sum": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "neg": np.negative, "abs": np.abs, "max": _larger, "min": lambda a, b: -_larger(-a, -b), "sqrt": np.sqrt,
    "cvt": np.asarray,
    "to": np.asarray, "rcp": lambda a: 1.0 / a, "rsqrt": lambda a: 1.0 / np.sqrt(a), "ex2": np.exp2,
    "lg2": lambda a: np.log2(np.where(a == 0.0, 0.0, a)), "log": lambda a: np.log(np.where(a == 0.0, 0.0, a)),
    "tanh": np.tanh, "exp": power,
    "and": np.minimum, "or": np.maximum, "xor": lambda p, q: np.abs(p - q), "not": lambda p: 1.0 - p,
}  # fmt: skip


def computed(name: str, *operands: Array) -> Array:
    """Return the results of an operation, named as in a graph or in the table of terms."""
    family, *how = name.removeprefix("torch.").split(".")
    held = how[-1] if how else ""
    if family in {"cvt", "to"}:
        held = next(one for one in how if one != "rn")
    with np.errstate(all="ignore"):
        if family == "ite":
            return np.where(operands[0] != 0.0, operands[1], operands[2])
        if "ftz" in how:
            operands = tuple(_flushed(one) for one in operands)
        if family == "setp":
            return _asked(how[0], *operands).astype(np.float64)
        if family == "within":
            return (np.isfinite(operands[0]) & ~np.signbit(operands[0])).astype(np.float64)
        if held == "pred":
            return _EXACT[family](*operands)
        if family == "fma":
            found = sum_with_product(held, *operands)
        elif family == "divfma":
            found = sum_with_product(held, operands[0], reciprocal(operands[1]), operands[2])
        elif family == "div" and "full" in how:
            found = rounded(held, operands[0] * reciprocal(operands[1]))
        elif "NaN" in how and len(operands) == 2:
            found = np.where(np.isnan(operands[0] + operands[1] * 0), np.nan, _EXACT[family](*operands))
        else:
            found = rounded(held, _EXACT[family](*operands))
        return _flushed(found) if "ftz" in how else found


def _flushed(numbers: Array) -> Array:
    return np.where(np.abs(numbers) < 2.0**-126, np.copysign(0.0, numbers), numbers)
