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


def round_to_format(values: Reals, target: Format) -> Reals:
    """Round to nearest, ties to even, and hold what would overflow at the largest finite number.

    Infinities and NaN stay. One rounding only: torch's own float64 -> float16 rounds twice.
    """
    rounded = values
    if target.precision < 53:
        exponents = np.frexp(values)[1]
        quantum = np.maximum(exponents - target.precision, target.subnormal_exponent)
        with np.errstate(over="ignore"):
            rounded = np.ldexp(np.rint(np.ldexp(values, -quantum)), quantum)
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
