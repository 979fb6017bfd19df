"""Enclosed arithmetic: the shadow of a float is its lifted value and a proved radius around it.

The value is that of `lifted`. The radius bounds its distance from what the same instructions, steered by the
floats, give in real arithmetic: float64's own roundings, and what a rounded constant may stand for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.shadow.arithmetics.ball import (
    FOLDED,
    UPWARD,
    BallArithmetic,
    shifts_exactly,
    stays_infinite,
)
from verifier.machine.shadow.arithmetics.lifted import LITERALS, Lifted
from verifier.machine.shadow.arithmetics.selection import CLAMPS, chooses_integer, clamped, rounds_to_integer
from verifier.machine.shadow.emitter_kind import EmitterKind

if TYPE_CHECKING:
    from verifier.machine.arithmetic.numerics import Array

NAME = "enclosed"

UNIT_ROUNDOFF = 2.0**-53
"""Unit roundoff of float64."""
_TINY = 2.0**-1060
"""Covers the underflow of the few float64 operations of one rule."""
# Roundings of what `lifted` computes, relative to the result. NumPy's functions err by less than 4 ulp, which
# is 8 u; 1 / sqrt(x) has two roundings.
_ROUNDINGS = {
    **dict.fromkeys(("add", "sub", "mul", "div", "rcp", "sqrt", "fma", "mad", "divfma"), 1.0),
    "rsqrt": 3.0,
    **dict.fromkeys(("ex2", "lg2", "log", "log2", "sin", "cos", "tanh", "tanhf"), 8.0),
}
_SHORT = 2.0**8
"""A constant of so many binary digits (1.5, 0.875) is what it says; 1/N with N below 2^8 has more."""
_UNITS = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "f64": 2.0**-53}
# CUDA's expf multiplies by it to find the integer part of an exponent: what it stands for changes nothing.
_CHOOSER = float(np.array([0x3BBB989D], dtype=np.uint32).view(np.float32)[0])
_SHADOW = np.dtype([("value", "f8"), ("radius", "f8")])


@dataclass(frozen=True, kw_only=True)
class Enclosed:
    """Shadows are (value, radius), float64; infinity as a radius means that nothing is known.

    unit_roundoff: relative error of every operation; 2^-24 asks what single precision could explain.
    `rounded` collects constants that may stand for other numbers, `apart` counts choices as `lifted` does.
    """

    name: str = NAME
    emitter: EmitterKind = EmitterKind.SLOTS
    dtype: np.dtype[np.void] = field(default_factory=lambda: _SHADOW)
    unit_roundoff: float = UNIT_ROUNDOFF
    lifted: Lifted = field(default_factory=Lifted)
    ball: BallArithmetic = field(default_factory=BallArithmetic)
    rounded: set[float] = field(default_factory=set)

    @property
    def apart(self) -> int:
        """How many choices the lifted values would have made otherwise."""
        return self.lifted.apart[0]

    def lift(self, values: Array, kind: str) -> Array:
        """Take short numbers as they are, and a longer one for a constant that was rounded.

        An array of other numbers has lost its shadows: nothing is known of it. Short numbers that lost theirs
        (bfloat16 data that is widened by its bits) are counted by who reads them.
        """
        plain = np.asarray(values)
        wide = self.lifted.lift(plain, kind)
        size = np.abs(plain.astype(np.float64))
        with np.errstate(invalid="ignore"):
            mantissa = np.frexp(size)[0] * _SHORT
            exact = np.isinf(size) | (size == np.rint(size)) | (mantissa == np.rint(mantissa))
        if kind == "integer":
            exact = size <= 2.0**53
        radius = np.where(exact, 0.0, np.inf)
        if plain.size == 1 and kind in _UNITS and not exact.all():
            radius = self._of_constant(plain, wide, size, kind)
        return _shadows(wide, radius)

    def _of_constant(self, plain: Array, wide: Array, size: Array, kind: str) -> Array:
        number = float(plain.reshape(-1)[0])
        if kind == "f32" and number in self.lifted.literals:
            return np.asarray(UNIT_ROUNDOFF * np.abs(wide))  # the nearest float64 number to what is meant
        self.rounded.add(number)
        return np.asarray(FOLDED * _UNITS[kind] * size)

    def apply(
        self, name: str, kind: str, result: Array, floats: tuple[Array, ...], shadows: tuple[Array, ...]
    ) -> Array:
        """Compute the lifted value and bound its distance from the exact one; NaN becomes infinity."""
        values = tuple(np.asarray(s["value"]) for s in shadows)
        radii = tuple(np.asarray(s["radius"]) for s in shadows)
        with np.errstate(all="ignore"):
            value = np.asarray(self.lifted.apply(name, kind, result, floats, values))
            radius = self.radius(name, kind, result, floats, value, values, radii)
        return _shadows(value, np.where(np.isnan(radius), np.inf, radius))

    def modified(  # noqa: PLR0917 (as `apply`, with one more)
        self,
        name: str,
        modifiers: frozenset[str],
        kind: str,
        result: Array,
        floats: tuple[Array, ...],
        shadows: tuple[Array, ...],
    ) -> Array:
        """Compute as ever, for nothing is rounded; what the float run clamped is exactly the clamp."""
        found = self.apply(name, kind, result, floats, shadows)
        if "xorsign" in modifiers:
            return _shadows(found["value"], np.full(np.shape(result), np.inf))
        if "sat" in modifiers and name == "cvt" and chooses_integer(kind, result, floats[0]):
            found = np.broadcast_to(np.asarray(shadows[0]), np.shape(result))
        if not modifiers & CLAMPS:
            return found
        changed = clamped(name, modifiers, result, floats)
        value = np.where(changed, np.asarray(result, dtype=np.float64), found["value"])
        return _shadows(value, np.where(changed, 0.0, found["radius"]))

    def radius(  # noqa: PLR0917 (what `apply` has, unpacked)
        self,
        name: str,
        kind: str,
        result: Array,
        floats: tuple[Array, ...],
        value: Array,
        values: tuple[Array, ...],
        radii: tuple[Array, ...],
    ) -> Array:
        """Bound |value - exact| of one operation, by the radii of its operands."""
        if name in ("add", "sub", "fma") and kind == "f32" and rounds_to_integer(floats[-1]):
            # Whichever integer it is, the code goes on from it exactly. A computed number that happens to be
            # of that size chooses none, but `lifted` cannot tell.
            return np.full(np.shape(value), 0.0 if shifts_exactly(name, kind, floats, radii) else np.inf)
        if name in ("min", "max"):
            return _of_chosen(result, floats, radii)
        if name in ("neg", "abs"):
            return radii[0]
        if name == "cvt" and chooses_integer(kind, result, floats[0]):
            return np.where(result == floats[0], radii[0], 0.0)
        if name == "cvt":
            return radii[0]
        if name not in _ROUNDINGS:
            return np.full(np.shape(value), np.inf)
        bound = self.propagated(name, value, values, radii) + self.own(name, value, values)
        return np.where(stays_infinite(name, value, values, radii), 0.0, bound * UPWARD)

    def propagated(
        self, name: str, value: Array, values: tuple[Array, ...], radii: tuple[Array, ...]
    ) -> Array:
        """Bound what the radii of the operands make of the result."""
        sizes = tuple(np.abs(v) for v in values)
        if name == "divfma":
            return self.ball.quotient(sizes[0], sizes[1], radii[0], radii[1]) + radii[2]
        return self.ball.propagated(name, np.abs(value), sizes, radii)

    def own(self, name: str, value: Array, values: tuple[Array, ...]) -> Array:
        """Bound the roundings of the lifted operation itself."""
        size = np.abs(value)
        if name in ("fma", "mad"):
            size = size + np.abs(values[0] * values[1])
        if name == "divfma":
            size = size + np.abs(values[0] / values[1])
        if name in ("log", "log2"):
            size = size + 2 * np.abs(values[1])  # log(x), and the multiple of log(2) that is added
        return np.asarray(_ROUNDINGS[name] * self.unit_roundoff * size + _TINY)


def _shadows(value: Array, radius: Array) -> Array:
    value, radius = np.broadcast_arrays(value, radius)
    made = np.empty(value.shape, dtype=_SHADOW)
    made["value"], made["radius"] = value, radius
    return made


def exact(values: Array) -> Array:
    """Return shadows of numbers that are what they are."""
    return _shadows(np.asarray(values, dtype=np.float64), np.zeros(np.shape(values)))


def _of_chosen(result: Array, floats: tuple[Array, ...], radii: tuple[Array, ...]) -> Array:
    """Return the widest radius of the operands that the float run may have chosen (of all, where none is)."""
    chosen = [np.where(f == result, r, -1.0) for f, r in zip(floats, radii, strict=True)]
    widest = np.max(np.broadcast_arrays(*chosen), axis=0)
    answer: Array = np.where(widest < 0, np.max(np.broadcast_arrays(*radii), axis=0), widest)
    return answer


def build(*, unit_roundoff: float = UNIT_ROUNDOFF, as_written: Sequence[float] = ()) -> Enclosed:
    """Make the arithmetic.

    as_written: numbers of a specification. The float32 next to one stands for it in the code, unless it could
    stand for another known number too: then it is a constant like any other.
    """
    meant = {number: {known} for number, known in {**LITERALS, _CHOOSER: _CHOOSER}.items()}
    for number in (*as_written, *(-n for n in as_written)):
        meant.setdefault(float(np.float32(number)), set()).add(number)
    literals = {number: numbers.pop() for number, numbers in meant.items() if len(numbers) == 1}
    return Enclosed(unit_roundoff=unit_roundoff, lifted=Lifted(literals=literals))
