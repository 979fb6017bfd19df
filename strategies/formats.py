"""Floating-point formats by their torch name, with exact rounding into them."""

import functools
import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

Reals: TypeAlias = npt.NDArray[np.float64]

FLOAT_NAMES = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True, kw_only=True)
class Format:
    """A binary floating-point format.

    precision: bits of the significand, the implicit one included.
    min_exponent, max_exponent: exponents of the smallest normal and of the largest finite number,
    in the convention 1 <= significand < 2.
    """

    name: str
    precision: int
    min_exponent: int
    max_exponent: int
    max: float

    @property
    def subnormal_exponent(self) -> int:
        """Exponent of the smallest positive number."""
        return self.min_exponent - self.precision + 1

    @property
    def decimal_digits(self) -> int:
        """Largest k with 10^k <= 2^precision: from 10^k on, 1 is no longer added to 10^k exactly."""
        return len(str(2**self.precision)) - 1


def dtype_name(dtype: str | torch.dtype) -> str:
    """Return torch's attribute name of a dtype, such as "bfloat16".

    Raises: ValueError for anything but the four formats that norm kernels take.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in FLOAT_NAMES:
        raise ValueError(f"dtype {dtype!r} is not supported; choose from {', '.join(FLOAT_NAMES)}")
    return name


@functools.cache
def float_format(dtype: str | torch.dtype) -> Format:
    """Return the format of a floating-point dtype.

    Raises: ValueError for an unknown dtype.
    """
    name = dtype_name(dtype)
    information = torch.finfo(getattr(torch, name))
    # frexp writes x = m 2^e with 1/2 <= m < 1, hence the ones
    return Format(
        name=name,
        precision=2 - math.frexp(information.eps)[1],
        min_exponent=math.frexp(information.tiny)[1] - 1,
        max_exponent=math.frexp(information.max)[1] - 1,
        max=information.max,
    )


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
    too_large = np.isfinite(values) & (np.abs(rounded) > target.max)
    return np.where(too_large, np.copysign(target.max, values), rounded)


def to_tensor(values: Reals, target: Format) -> torch.Tensor:
    """Turn float64 numbers that the format holds exactly into a tensor of it.

    torch's own conversion is avoided: its vectorised loop gives NaN other bits than the loop for the rest.
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    if target.name != "bfloat16":
        return torch.from_numpy(flat.astype(target.name)).reshape(values.shape)
    upper_half = (flat.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return torch.from_numpy(upper_half.view(np.int16)).view(torch.bfloat16).reshape(values.shape)
