"""Floating-point formats by their torch name, with exact rounding into them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Reals: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Format:
    """A binary floating-point format with gradual underflow.

    `precision` counts the leading bit; `minimum_exponent` is the exponent of the smallest normal
    number 2**minimum_exponent; `maximum` is the largest finite number.
    """

    name: str
    precision: int
    minimum_exponent: int
    maximum: float

    @property
    def u(self) -> float:
        """Unit roundoff, 2**-precision (relative error of one round-to-nearest operation)."""
        return 2.0**-self.precision

    @property
    def smallest_normal(self) -> float:
        """Smallest positive normal number."""
        return math.ldexp(1.0, self.minimum_exponent)

    @property
    def omega(self) -> float:
        """Half the smallest subnormal number; never below float64's smallest positive number."""
        return max(math.ldexp(1.0, self.minimum_exponent - self.precision), 2.0**-1074)

    def holds(self, other: Format) -> bool:
        """Return whether every number of another format is one of this: digits, smallest and largest."""
        finest = self.minimum_exponent - self.precision <= other.minimum_exponent - other.precision
        return self.precision >= other.precision and finest and self.maximum >= other.maximum

    def represents(self, number: float) -> bool:
        """Return whether a finite number is one of this format, subnormal numbers included."""
        if number == 0.0 or not abs(number) <= self.maximum:
            return number == 0.0
        exponent = max(math.frexp(number)[1] - 1, self.minimum_exponent)
        return math.ldexp(number, self.precision - 1 - exponent) % 1.0 == 0.0

    @property
    def maximum_exponent(self) -> int:
        """Exponent of the largest finite number, where 1 <= significand < 2."""
        return math.frexp(self.maximum)[1] - 1

    @property
    def subnormal_exponent(self) -> int:
        """Exponent of the smallest positive number."""
        return self.minimum_exponent - self.precision + 1

    @property
    def decimal_digits(self) -> int:
        """Largest k with 10^k <= 2^precision: from 10^k on, 1 is no longer added to 10^k exactly."""
        return len(str(2**self.precision)) - 1


FORMATS: Final[dict[str, Format]] = {
    f.name: f
    for f in (
        Format(name="float16", precision=11, minimum_exponent=-14, maximum=65504.0),
        Format(name="bfloat16", precision=8, minimum_exponent=-126, maximum=float.fromhex("0x1.fep127")),
        Format(name="float32", precision=24, minimum_exponent=-126, maximum=float.fromhex("0x1.fffffep127")),
        Format(
            name="float64",
            precision=53,
            minimum_exponent=-1022,
            maximum=float.fromhex("0x1.fffffffffffffp1023"),
        ),
    )
}
FLOAT_NAMES: Final = tuple(FORMATS)


def dtype_name(dtype: str | torch.dtype) -> str:
    """Return torch's attribute name of a dtype, such as "bfloat16".

    Raises: ValueError for anything but the four formats that norm kernels take.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in FLOAT_NAMES:
        raise ValueError(f"dtype {dtype!r} is not supported; choose from {', '.join(FLOAT_NAMES)}")
    return name


def float_format(dtype: str | torch.dtype) -> Format:
    """Return the format of a floating-point dtype.

    Raises: ValueError for an unknown dtype.
    """
    return FORMATS[dtype_name(dtype)]


def nearest(target: Format, values: Reals) -> Reals:
    """Round float64 values to nearest, ties to even: gradual underflow, and overflow to infinity."""
    if target.precision == 53:
        return values
    given = np.asarray(values, dtype=np.float64)
    held = _OF_NUMPY.get((target.precision, target.minimum_exponent, target.maximum))
    if held is None:
        return _shortened(target, np.atleast_1d(given)).reshape(given.shape)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return given.astype(held).astype(np.float64)


_OF_NUMPY = {
    (one.precision, one.minimum_exponent, one.maximum): held
    for one, held in ((FORMATS["float16"], np.float16), (FORMATS["float32"], np.float32))
}
"""The formats whose conversions NumPy has."""


def _shortened(target: Format, given: Reals) -> Reals:
    """Round in the bits of float64: half a unit less one, and the last bit that stays, are added and cut off.

    A carry into the exponent is as it should be. What is subnormal in the format is rounded by adding a
    number so large that its last bit is the format's smallest number, and taking it away.
    """
    size, dropped = np.abs(given), 53 - target.precision
    bits = given.view(np.int64)
    last = (bits >> dropped) & 1
    rounded: Reals = ((bits + last + ((1 << (dropped - 1)) - 1)) & -(1 << dropped)).view(np.float64)
    if not size.min(initial=np.inf) >= target.smallest_normal:
        small = size < target.smallest_normal
        part, large = given[small], 1.5 * 2.0 ** (target.subnormal_exponent + 52)
        rounded[small] = np.copysign((part + large) - large, part)
    if not size.max(initial=0.0) <= target.maximum:
        whole = np.where(np.abs(rounded) > target.maximum, np.copysign(np.inf, given), rounded)
        rounded = np.where(np.isnan(given), given, whole)
    return rounded


def round_to_format(values: Reals, target: Format) -> Reals:
    """Round to nearest, ties to even, and hold what would overflow at the largest finite number.

    Infinities and NaN stay. One rounding only: torch's own float64 -> float16 rounds twice.
    """
    rounded = nearest(target, values)
    too_large = np.isfinite(values) & (np.abs(rounded) > target.maximum)
    return np.where(too_large, np.copysign(target.maximum, values), rounded)


def to_tensor(values: Reals, target: Format) -> torch.Tensor:
    """Turn float64 numbers that the format holds exactly into a tensor of it.

    torch's own conversion is avoided: its vectorised loop gives NaN other bits than the loop for the rest.
    """
    import torch

    flat = np.ascontiguousarray(values).reshape(-1)
    if target.name != "bfloat16":
        return torch.from_numpy(flat.astype(target.name)).reshape(values.shape)
    upper_half = (flat.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return torch.from_numpy(upper_half.view(np.int16)).view(torch.bfloat16).reshape(values.shape)
