"""Ball arithmetic: beside every float a proved bound on its distance from the exact result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from verifier.machine.approximation import DOCUMENTED, allowed_error
from verifier.machine.arithmetics.choice import chosen

if TYPE_CHECKING:
    from verifier.machine.numerics import Array

# Unit roundoff and half the spacing of subnormals.
_ROUNDING = {
    "f16": (2.0**-11, 2.0**-25),
    "bf16": (2.0**-8, 2.0**-134),
    "f32": (2.0**-24, 2.0**-150),
    "f64": (2.0**-53, 2.0**-1075),
}
# Bounds are computed in float64; each rule has fewer than 32 roundings, 2^-45 more than covers them.
_UPWARD = 1.0 + 2.0**-45


@dataclass(frozen=True, kw_only=True)
class Ball:
    """Slots are absolute error bounds; inputs are exact. Infinity means that nothing is known."""

    name: str = "ball"
    dtype: Any = np.float64

    def lift(self, values: Array, kind: str) -> Array:
        """Take data as exact, by definition."""
        del kind
        return np.zeros(np.shape(values), dtype=np.float64)

    def apply(
        self, name: str, kind: str, result: Array, floats: tuple[Array, ...], slots: tuple[Array, ...]
    ) -> Array:
        """Bound the propagated error and add the instruction's own; NaN becomes infinity."""
        values = tuple(np.abs(f.astype(np.float64)) for f in floats)
        own = self.own_error(name, kind, result)
        picked = chosen(name, result, floats, slots)
        if picked is not None:
            # The exact maximum of two balls is as near as the worse of them.
            return np.asarray(np.maximum(slots[0], slots[-1]))
        bound = (self.propagated(name, np.abs(result.astype(np.float64)), values, slots) + own) * _UPWARD
        return np.where(np.isnan(bound), np.inf, bound)

    def own_error(self, name: str, kind: str, result: Array) -> Array | float:
        """Bound the rounding of a basic operation, or the documented error of an approximate one."""
        if name in ("neg", "abs", "min", "max"):
            return 0.0
        unit, tiny = _ROUNDING[kind]
        wide = result.astype(np.float64)
        rounding = unit * np.abs(wide) + tiny
        if name == "divfma":
            name = "div"
        if name in DOCUMENTED and kind != "f64":
            # The bound is stated for the exact result; twice the bound at the computed one covers it.
            return np.asarray(2 * allowed_error(name, wide) + rounding)
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
            low = np.maximum(a - ea, 0)
            return np.where(ea == 0, 0.0, 1 / np.sqrt(low) - 1 / np.sqrt(a + ea))
        if name == "ex2":
            return result * np.expm1(ea * np.log(2)) * (1 + 2.0**-20)
        if name == "lg2":
            return np.where(ea == 0, 0.0, -np.log1p(-np.minimum(ea / a, 1)) / np.log(2))
        if name in ("sin", "cos", "tanh", "neg", "abs", "cvt"):
            return ea + np.zeros(np.shape(result))
        return np.full(np.shape(result), np.inf)

    def product(self, a: Array, b: Array, ea: Array, eb: Array) -> Array:
        """Compute |a| eb + |b| ea + ea eb, in which an exact operand contributes nothing even to infinity."""
        return np.where(eb == 0, 0.0, a * eb) + np.where(ea == 0, 0.0, b * ea + ea * eb)

    def quotient(self, a: Array, b: Array, ea: Array, eb: Array) -> Array:
        """(ea + |a/b| eb) / (|b| - eb), unknown when the divisor's ball holds zero."""
        reach = (ea + np.where(eb == 0, 0.0, a / b * eb)) / (b - eb)
        return np.where((ea == 0) & (eb == 0), 0.0, np.where(b > eb, reach, np.inf))


def build(**settings: Any) -> Ball:
    """Make the arithmetic."""
    return Ball(**settings)
