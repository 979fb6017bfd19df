"""Floating-point formats and the rounding errors of the operations that a kernel executes.

Everything here is a hypothesis of the theorems in docs/explanation: a format (see `strategies.formats`) gives
the unit roundoff `u` and the underflow unit `omega`, an `Arithmetic` the relative error of each operation
in units of `u`, with the evidence it rests on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from strategies.formats import FORMATS, Format

__all__ = [
    "FORMATS",
    "INFLATION",
    "Arithmetic",
    "Array",
    "Contraction",
    "DivideByN",
    "Format",
    "ieee",
    "theta",
]

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

INFLATION: Final = 1.0 + 2.0**-32
"""Factor that covers the float64 rounding of a bound made of at most 2**20 non-negative operations."""


DivideByN = Literal["division", "reciprocal", "either"]
Contraction = Literal["none", "uniform", "mixed"]


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """The errors of the operations that a kernel executes in its accumulation format.

    Each of `division`, `reciprocal`, `square_root`, `reciprocal_square_root` and `exponential` is
    a bound on the relative error of one operation in units of `u` (1 is correctly rounded).
    `exponential_argument` counts further roundings of the argument inside the exponential (2 where it
    is made of a power of two: the product with log2(e), and that constant), `exponential_underflow` is
    the absolute error of an exponential that underflows. `logarithm` is relative to the result,
    `logarithm_absolute` the absolute error near 1, where the result vanishes. `hyperbolic_tangent` is that of
    a library's function, `approximate_tangent` the relative error of tanh.approx.f32 in units of 1 (PTX ISA),
    `tangent_underflow` the absolute error where such a function flushes a subnormal argument.
    `contracts` says whether the compiler may fuse a multiplication into an addition, `atomics` whether floats
    may be added by atomic operations: those on global memory flush subnormal operands and results in every
    device, whatever the other operations do (PTX ISA, atom and red).
    `evidence` names what the constants rest on; it is printed in reports.

    Source: bounds in docs/explanation, section "Model".
    """

    format: Format
    flush_to_zero: bool = False
    division: float = 1.0
    reciprocal: float = 1.0
    square_root: float = 1.0
    reciprocal_square_root: float = 2.0
    exponential: float = 2.0
    exponential_argument: float = 0.0
    exponential_underflow: float = 0.0
    logarithm: float = 2.0
    logarithm_absolute: float = 0.0
    hyperbolic_tangent: float = 5.0
    approximate_tangent: float = 2.0**-11
    tangent_underflow: float = 0.0
    contracts: bool = True
    atomics: bool = False
    evidence: str = "IEEE 754, correctly rounded"

    @property
    def u(self) -> float:
        """Unit roundoff of the accumulation format."""
        return self.format.u

    @property
    def omega(self) -> float:
        """Absolute error of one multiplication or division that underflows."""
        return self.underflow(max(self.division, self.reciprocal))

    def underflow(self, roundings: float) -> float:
        """Return the absolute error of an operation of so many roundings whose result is subnormal.

        An error of two ulp is two spacings there as well, however small the result.
        """
        return self.format.smallest_normal if self.flush_to_zero else self.format.omega * max(roundings, 1.0)

    @property
    def addition_omega(self) -> float:
        """Absolute error of one addition or one input read: nothing, unless subnormals are flushed."""
        return self.format.smallest_normal if self.flush_to_zero else 0.0

    @property
    def sum_omega(self) -> float:
        """Absolute error of one addition of a sum: an atomic one may flush its operand and its result."""
        return 2.0 * self.format.smallest_normal if self.atomics else self.addition_omega

    def division_by_count(self, count: int, how: DivideByN = "division") -> float:
        """Return the roundings, in u, that dividing a sum by `count` costs (c_m of the theorems).

        how: "either" where nothing is known of it: the larger of both ways.
        """
        if how == "either":
            return max(self.division_by_count(count, way) for way in ("division", "reciprocal"))
        inexact_count = 1.0 if _odd_part(count) > 2.0**self.format.precision else 0.0
        operation = self.division if how == "division" else self.reciprocal
        if _is_power_of_two(count) and operation == 1.0:
            return 0.0
        roundings = operation if how == "division" else operation + 1.0
        return roundings + inexact_count

    def count_problem(self, count: int, how: DivideByN = "division") -> str:
        """Return why no theorem covers dividing by `count`; nothing if one does."""
        if count <= 0:
            return "the row is empty"
        if count > self.format.maximum:
            return f"the count {count} overflows {self.format.name}"
        if how != "division" and count * self.format.smallest_normal > 1.0:
            return f"1/{count} is subnormal in {self.format.name}"
        return ""

    def in_format(self, format_name: str) -> Arithmetic:
        """Return the same operations, correctly rounded to another format's precision."""
        return replace(self, format=FORMATS[format_name])


def ieee(format_name: str, **changes: object) -> Arithmetic:
    """Return correctly rounded arithmetic in the named format, with the given fields changed."""
    return replace(Arithmetic(format=FORMATS[format_name]), **changes)  # type: ignore[arg-type]


def theta(k: float, u: float) -> float:
    """Return (1 + u)**k - 1, the bound on the product of k relative errors of at most u each."""
    exponent = k * math.log1p(u)
    return math.expm1(exponent) * INFLATION if exponent < 700.0 else math.inf  # float64 ends at exp(709)


def _odd_part(count: int) -> int:
    return count // (count & -count) if count else 1


def _is_power_of_two(count: int) -> bool:
    return count > 0 and count & (count - 1) == 0
