"""Ball arithmetic: the shadow of a float is a proved bound on its distance from the exact result."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.arithmetic.approximation import DOCUMENTED, allowed_error
from verifier.machine.ptx.logarithms import BASES
from verifier.machine.shadow.arithmetics.selection import chooses_integer, rounds_to_integer
from verifier.machine.shadow.emitter_kind import EmitterKind

if TYPE_CHECKING:
    from verifier.machine.arithmetic.numerics import Array

NAME = "ball"

# Unit roundoff and half the spacing of subnormals.
_ROUNDING = {
    "f16": (2.0**-11, 2.0**-25),
    "bf16": (2.0**-8, 2.0**-134),
    "f32": (2.0**-24, 2.0**-150),
    "f64": (2.0**-53, 2.0**-1075),
}
# Bounds are computed in float64; each rule has fewer than 32 roundings, 2^-45 more than covers them.
UPWARD = 1.0 + 2.0**-45


FOLDED = 4.0
"""Units around a literal: one for its own rounding, the others where a compiler folded constants.

Two constants that are each rounded, and their rounded product, are 3 units from what is meant.
"""
_SUMS = frozenset({"add", "sub", "mul", "fma", "mad"})
# Results and operands below this may be taken as zero where an instruction flushes (.ftz, ex2.approx).
_FLUSHED = 2.0**-126


_SHADOW = np.dtype(np.float64)


@dataclass(frozen=True, kw_only=True)
class BallArithmetic:
    """Shadows are absolute error bounds; data are exact. Infinity means that nothing is known.

    given: every tensor of data has its shadows from the start. Then a number without one is a literal or a
    scalar argument, which stands for whatever is within `FOLDED` units unless it is an integer or a power of
    two; and an array of numbers without shadows has lost them, so that nothing is known of it (powers of two
    apart, by which code scales exponentials and which it makes of integers).
    """

    name: str = NAME
    emitter: EmitterKind = EmitterKind.SLOTS
    dtype: np.dtype[np.float64] = _SHADOW
    given: bool = False

    def lift(self, values: Array, kind: str) -> Array:
        """Bound what a value without a shadow may differ from what it stands for."""
        if not self.given:
            return np.zeros(np.shape(values), dtype=np.float64)
        size = np.abs(np.asarray(values, dtype=np.float64))
        if kind == "integer":
            return np.where(size <= 2.0**24, 0.0, _ROUNDING["f32"][0] * size)
        with np.errstate(invalid="ignore"):
            exact = np.isinf(size) | (size == 0) | (np.frexp(size)[0] == 0.5)
            if np.size(values) != 1:
                return np.where(exact, 0.0, np.inf)
            unit = _ROUNDING[kind][0] if kind in _ROUNDING else np.inf
            return np.where(exact | (size == np.rint(size)), 0.0, FOLDED * unit * size)

    def lift_written(self, values: Array, kind: str) -> Array:
        """Take 0 and infinity for what they are; any other number in memory has lost its shadow."""
        plain = np.asarray(values)
        return np.where(np.isinf(plain) | (plain == 0) | (not self.given), 0.0, np.inf)

    def apply(
        self, name: str, kind: str, result: Array, floats: tuple[Array, ...], shadows: tuple[Array, ...]
    ) -> Array:
        """Bound the propagated error and add the instruction's own; NaN becomes infinity."""
        if name in ("min", "max"):
            # The exact extremum of balls is as near as the worst of them.
            return np.asarray(reduce(np.maximum, shadows))
        if name in ("neg", "abs"):
            return np.broadcast_to(shadows[0], np.shape(result))
        if shifts_exactly(name, kind, floats, shadows):
            return np.zeros(np.shape(result))  # whichever integer it is, the code goes on from it exactly
        with np.errstate(all="ignore"):
            known = self.sum_bound if name in _SUMS else self.general_bound
            bound = known(name, kind, result, floats, shadows)
            if np.isfinite(np.add.reduce(bound, axis=None)):
                return bound
            if name in _SUMS:
                bound = self.general_bound(name, kind, result, floats, shadows)
            bound = np.where(stays_infinite(name, result, floats, shadows), 0.0, bound)
        return np.where(np.isnan(bound), np.inf, bound)

    def modified(  # noqa: PLR0917 (as `apply`, with one more)
        self,
        name: str,
        modifiers: frozenset[str],
        kind: str,
        result: Array,
        floats: tuple[Array, ...],
        shadows: tuple[Array, ...],
    ) -> Array:
        """Bound an instruction that rounds, flushes or clamps; unlimited where no rule is proved for that."""
        if name == "cvt":
            if "sat" in modifiers and chooses_integer(kind, result, floats[0]):
                return np.broadcast_to(shadows[0], np.shape(result))  # clamping brings nothing apart
            return self.apply(
                name, kind, result, floats, shadows
            )  # what it lost is measured, whatever it was
        if shifts_exactly(name, kind, floats, shadows):
            return self.apply(
                name, kind, result, floats, shadows
            )  # CUDA's expf chooses its integer by fma.rm
        if modifiers != {"ftz"} or kind in ("f16", "bf16"):
            return np.full(np.shape(result), np.inf)
        bound = self.apply(name, kind, result, floats, shadows)
        if name in ("neg", "abs", "min", "max"):  # the others count what float32 flushes at every step
            below = [(np.abs(f) < _FLUSHED) & (f != 0) for f in floats]
            bound = np.where(reduce(np.logical_or, below), (bound + _FLUSHED) * UPWARD, bound)
        return bound

    def sum_bound(
        self, name: str, kind: str, result: Array, floats: tuple[Array, ...], shadows: tuple[Array, ...]
    ) -> Array:
        """Bound sums and products, nearly all there is, in few passes; NaN where infinities meet."""
        unit, tiny = _ROUNDING[kind]
        bound = np.abs(result).astype(np.float64)
        bound *= unit
        if name in ("add", "sub"):
            bound += shadows[0]
            bound += shadows[1]
        else:
            a, b = (np.abs(f).astype(np.float64) for f in floats[:2])
            if name != "mul":
                bound += shadows[2]
            # A subnormal factor that is taken as zero.
            bound += a * (shadows[1] + _FLUSHED)
            b += shadows[1]
            bound += b * (shadows[0] + _FLUSHED)
        bound += 3 * _FLUSHED if kind == "f32" else tiny
        bound *= UPWARD
        return bound

    def general_bound(
        self, name: str, kind: str, result: Array, floats: tuple[Array, ...], shadows: tuple[Array, ...]
    ) -> Array:
        """Bound any operation."""
        wide = result.astype(np.float64)
        if name == "cvt":
            if chooses_integer(kind, result, floats[0]):
                return np.where(wide == floats[0], shadows[0], 0.0)
            # A conversion's error is known exactly: both sides are float64 numbers.
            equal = wide == floats[0]
            if equal.all():  # as wherever 16 bits are widened
                return np.broadcast_to(shadows[0], np.shape(result))
            lost = np.where(equal, 0.0, np.abs(wide - floats[0]))
            return np.asarray((shadows[0] + lost) * UPWARD)
        values = tuple(np.abs(f.astype(np.float64)) for f in floats)
        if kind == "f32":
            shadows = tuple(_may_flush(v, e) for v, e in zip(values, shadows, strict=True))
        size = np.abs(wide)
        own = self.own_error(name, kind, size)
        return np.asarray((self.propagated(name, size, values, shadows) + own) * UPWARD)

    def own_error(self, name: str, kind: str, size: Array) -> Array | float:
        """Bound the rounding of a basic operation, or the documented error of an approximate one."""
        unit, tiny = _ROUNDING[kind]
        if name == "divfma":
            name = "div"
        rounding = unit * size + (_FLUSHED if kind == "f32" and name == "ex2" else tiny)
        if name in DOCUMENTED and kind != "f64":
            # The bound is stated for the exact result; twice the bound at the computed one covers it.
            return np.asarray(2 * allowed_error(name, size) + rounding)
        return np.asarray(rounding)

    def propagated(
        self, name: str, result: Array, values: tuple[Array, ...], errors: tuple[Array, ...]
    ) -> Array:
        """Bound of |f(exact operands) - f(operands)|."""
        a, ea = values[0], errors[0]
        if name in ("add", "sub"):
            return ea + errors[1]
        if name == "mul":
            return self.product(a, values[1], ea, errors[1])
        if name in ("fma", "mad"):
            return self.product(a, values[1], ea, errors[1]) + errors[2]
        if name == "div":
            return self.quotient(a, values[1], ea, errors[1])
        if name == "divfma":
            # The quotient's own approximation error is counted at the quotient's size.
            size = np.divide(a, values[1])
            return self.quotient(a, values[1], ea, errors[1]) + errors[2] + size * 2.0**-21
        if name == "rcp":
            return self.quotient(np.ones(()), a, np.zeros(()), ea)
        if name == "sqrt":
            return np.where(ea == 0, 0.0, ea / (np.sqrt(a) + np.sqrt(np.maximum(a - ea, 0))))
        if name == "rsqrt":
            # 1/sqrt(a - ea) - 1/sqrt(a), written so that nothing cancels however small ea is.
            root, low = np.sqrt(a), np.sqrt(np.maximum(a - ea, 0))
            return np.where(ea == 0, 0.0, ea / (root * low * (root + low)))
        if name == "ex2":
            answer: Array = np.maximum(result, _FLUSHED) * np.expm1(ea * np.log(2)) * (1 + 2.0**-20)
            return answer
        if name == "lg2":
            return np.where(ea == 0, 0.0, -np.log1p(-np.minimum(ea / a, 1)) / np.log(2))
        if name in BASES:
            reach = np.where(ea == 0, 0.0, -np.log1p(-np.minimum(ea / a, 1)))
            scaled: Array = (reach / np.log(2) + errors[1]) * BASES[name]
            return scaled
        if name in ("sin", "cos", "tanh", "tanhf"):
            return ea + np.zeros(np.shape(result))
        return np.full(np.shape(result), np.inf)

    def product(self, a: Array, b: Array, ea: Array, eb: Array) -> Array:
        """Compute |a| eb + |b| ea + ea eb, in which an exact operand contributes nothing even to infinity."""
        return np.where(eb == 0, 0.0, a * eb) + np.where(ea == 0, 0.0, b * ea + ea * eb)

    def quotient(self, a: Array, b: Array, ea: Array, eb: Array) -> Array:
        """(ea + |a/b| eb) / (|b| - eb), unknown when the divisor's ball holds zero."""
        reach = (ea + np.where(eb == 0, 0.0, a / b * eb)) / (b - eb)
        return np.where((ea == 0) & (eb == 0), 0.0, np.where(b > eb, reach, np.inf))


def shifts_exactly(name: str, kind: str, floats: tuple[Array, ...], errors: tuple[Array, ...]) -> bool:
    """Tell an addition that rounds to an integer; what was computed, and errs, is no constant for that."""
    if name not in ("add", "sub", "fma") or kind != "f32":
        return False
    return rounds_to_integer(floats[-1]) and not np.any(errors[-1])


def stays_infinite(
    name: str, result: Array, floats: tuple[Array, ...], shadows: tuple[Array, ...]
) -> Array | bool:
    """Tell where an operand is exactly infinite (a masked lane of a softmax), hence the result too."""
    if name not in _SUMS or not np.isinf(result).any():
        return False
    known = [np.isinf(f) & (e == 0) for f, e in zip(floats, shadows, strict=True)]
    if name in ("add", "sub"):
        sure = known[0] | known[1]
    else:
        # The other factor has a certain sign.
        sides = [np.abs(f.astype(np.float64)) > e for f, e in zip(floats, shadows, strict=True)]
        sure = (known[0] & (sides[1] | known[1])) | (known[1] & (sides[0] | known[0]))
    return np.asarray(np.isinf(result) & sure)


def _may_flush(size: Array, error: Array) -> Array:
    """Let a subnormal operand be zero, as it is to an instruction that flushes."""
    below = (size < _FLUSHED) & (size > 0)
    return np.where(below, error + size, error) if below.any() else error


def build(*, given: bool = False) -> BallArithmetic:
    """Make the arithmetic; given: see `Ball`."""
    return BallArithmetic(given=given)
