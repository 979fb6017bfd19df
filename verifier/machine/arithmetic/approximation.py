"""Models of the approximate instructions: what a device may answer where PTX leaves it free."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from verifier.machine.arithmetic.numerics import Array, divide32, fma32

if TYPE_CHECKING:
    from collections.abc import Callable

# Largest error of each approximate float32 instruction, as (ulp of the exact result, relative, absolute).
# Source: PTX ISA, sections on floating-point instructions; `unit.Table` answers as a measured device does.
# "log", "log2" and "tanhf" are the compilers' functions (CUDA C++ Programming Guide), which `logarithm` and
# `hyperbolic` recognise.
DOCUMENTED: dict[str, tuple[float, float, float]] = {
    "rcp": (1.0, 0.0, 0.0),
    "sqrt": (0.0, 2.0**-23, 0.0),
    "rsqrt": (0.0, 2.0**-22.9, 0.0),
    "ex2": (0.0, 2.0**-22.5, 0.0),
    "lg2": (0.0, 2.0**-22, 2.0**-22),
    "sin": (0.0, 0.0, 2.0**-20.5),
    "cos": (0.0, 0.0, 2.0**-20.5),
    "tanh": (0.0, 2.0**-11, 0.0),
    "div": (2.0, 0.0, 0.0),
    "log": (1.0, 0.0, 0.0),
    "log2": (1.0, 0.0, 0.0),
    "tanhf": (2.0, 0.0, 0.0),
    "rcp_f64": (0.0, 2.0**-23, 0.0),
    "rsqrt_f64": (0.0, 2.0**-22, 0.0),
}


class Approximation(Protocol):
    """A model answers for a named instruction: rcp, sqrt, rsqrt, ex2, lg2, sin, cos, tanh, div, div_fma."""

    def evaluate(self, name: str, *operands: Array) -> Array:
        """Results of the instruction on these operands."""
        ...


_EXACT: dict[str, Callable[..., Array]] = {
    "rcp": lambda x: 1.0 / x,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "div": lambda a, b: a / b,
}


@dataclass(frozen=True, kw_only=True)
class Correct:
    """Every approximate instruction correctly rounded to nearest even."""

    def evaluate(self, name: str, *operands: Array) -> Array:
        """Round the float64 value once, redoing lanes too close to a tie in higher precision."""
        if name == "div":
            return divide32(*operands)
        if name == "div_fma":
            return fused_quotient(self, *operands)
        if name == "rcp":
            return divide32(np.float32(1), operands[0])
        if name == "sqrt":
            return np.sqrt(np.asarray(operands[0], dtype=np.float32))
        if name.endswith("_f64"):
            return np.asarray(_EXACT[name[:-4]](np.asarray(operands[0], dtype=np.float64)))
        (x,) = operands
        value = np.asarray(_EXACT[name](np.asarray(x, dtype=np.float64)))
        return _settle_ties(name, np.asarray(x), value).astype(np.float32)


def _settle_ties(name: str, x: Array, value: Array) -> Array:
    """Redo the lanes whose float64 value is within 8 units of a float32 tie, where its error could decide."""
    low = value.view(np.uint64) & np.uint64(0x1FFFFFFF)
    distance = np.abs(low.astype(np.int64) - 0x10000000)
    doubtful = (distance <= 8) & np.isfinite(value) & (value != 0)
    subnormal = (np.abs(value) < 2.0**-126) & (value != 0)
    if subnormal.any():  # there the ties are the odd multiples of 2^-150
        units = np.ldexp(np.where(subnormal, np.abs(value), 0.0), 149)
        near = np.abs(units - np.floor(units) - 0.5) <= 2.0**-49 * units
        doubtful = np.where(subnormal, near, doubtful)
    if doubtful.any():
        value = value.copy()
        for lane in np.argwhere(doubtful):
            place = tuple(lane)
            value[place] = _by_mpmath(name, float(x[place]))
    return value


def _by_mpmath(name: str, x: float) -> float:
    """Evaluate with 200 bits and round to odd in float64, so that the step to float32 rounds correctly."""
    import mpmath

    with mpmath.workprec(200):
        argument = mpmath.mpf(x)
        value = {
            "rsqrt": lambda v: 1 / mpmath.sqrt(v),
            "ex2": lambda v: mpmath.mpf(2) ** v,
            "lg2": lambda v: mpmath.log(v, 2),
            "sin": mpmath.sin,
            "cos": mpmath.cos,
            "tanh": mpmath.tanh,
        }[name](argument)
        sign, mantissa, exponent, bits = value._mpf_
    surplus = max(bits - 53, 0)
    head = int(mantissa) >> surplus
    if head << surplus != mantissa:
        head |= 1
    return math.ldexp(-head if sign else head, exponent + surplus)


@dataclass(frozen=True, kw_only=True)
class Adversarial:
    """Any answer inside the documented error, chosen by a hash of seed, instruction and operands.

    The same operands always get the same answer, as on a real device; `extreme` pushes every answer to
    the edge of what is allowed instead of somewhere inside.
    """

    seed: int = 0
    extreme: bool = False
    exact: Correct = field(default_factory=Correct)

    def evaluate(self, name: str, *operands: Array) -> Array:
        """Move the exact value by a pseudo-random share of the allowed error."""
        if name.endswith("_f64"):
            return self.exact.evaluate(name, *operands)
        if name == "div_fma":
            return fused_quotient(self, *operands)
        wide = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in operands))
        value = np.asarray(_EXACT[name](*wide), dtype=np.float64)
        shift = self.share(name, *operands) * allowed_error(name, value)
        moved = (value + shift).astype(np.float32)
        limit = allowed_error(name, value)
        inside = np.abs(moved.astype(np.float64) - value) <= limit
        exact = self.exact.evaluate(name, *operands)
        return np.where(inside & np.isfinite(value) & ~_is_exact_case(name, wide, value), moved, exact)

    def share(self, name: str, *operands: Array) -> Array:
        """Numbers in [-1, 1], a function of seed, instruction and operand bits."""
        mixed: Array = np.array(
            (self.seed * 0x9E3779B97F4A7C15 + sum(name.encode()) * 0xD1B54A32D192ED03) % 2**64,
            dtype=np.uint64,
        )
        for operand in operands:
            bits = np.asarray(operand, dtype=np.float32).view(np.uint32).astype(np.uint64)
            mixed = _mix(mixed ^ bits)
        unit = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0
        answer: Array = np.sign(unit) if self.extreme else unit
        return answer


def _mix(x: object) -> Array:
    """Scramble 64 bits (the finaliser of splitmix64)."""
    x = np.asarray(x, dtype=np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _is_exact_case(name: str, operands: tuple[Array, ...], value: Array) -> Array:
    """Results that the instruction set pins down: zeros, infinities, and powers of two of integers."""
    exact = (value == 0) | ~np.isfinite(value)
    if name == "ex2":
        exact |= operands[0] == np.rint(operands[0])
    answer: Array = exact
    return answer


def allowed_error(name: str, value: Array) -> Array:
    """Largest documented absolute error of an instruction whose exact result is `value`."""
    ulps, relative, absolute = DOCUMENTED[name]
    magnitude = np.abs(value)
    exponent = np.maximum(np.frexp(magnitude)[1] - 24, -149)
    bound = ulps * np.ldexp(1.0, exponent) + relative * magnitude
    if name == "lg2":
        # The absolute bound holds for arguments in (0.5, 2), where |lg2| < 1; the relative one elsewhere.
        return np.where(magnitude < 1, absolute, bound)
    answer: Array = bound + absolute
    return answer


def quotient_factors(model: Approximation, a: Array, b: Array) -> tuple[Array, Array]:
    """Give what `div.full` multiplies: the dividend and the divisor's reciprocal.

    ptxas scales both by 1/4 when the divisor is above 2^126 and by 2^24 when it is subnormal.
    """
    magnitude = np.abs(b)
    scale = np.where(magnitude > np.float32(2.0**126), np.float32(0.25), np.float32(1))
    scale = np.where(magnitude < np.float32(2.0**-126), np.float32(2.0**24), scale)
    return np.asarray(a * scale), model.evaluate("rcp", np.asarray(b * scale))


def fused_quotient(model: Approximation, a: Array, b: Array, c: Array) -> Array:
    """Compute `a / b + c` as ptxas fuses it: the product with the reciprocal is never rounded."""
    scaled, reciprocal = quotient_factors(model, a, b)
    return fma32(scaled, reciprocal, c)
