"""A device's special-function unit, bit for bit, from tables read on the device.

`device(90)` is the unit of compute capability 9.0. tests/goldens/make.py reads the tables and checks on the
device, for every float32, that the functions here give its answers.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from verifier.machine.arithmetic.approximation import Correct, fused_quotient, quotient_factors
from verifier.machine.arithmetic.numerics import Array

TABLES = Path(__file__).parents[1] / "tables"
# Float32 interval over which each instruction is tabulated, as bits of its ends.
SPANS: dict[str, tuple[int, int]] = {
    "rcp": (0x3F800000, 0x40000000),
    "sqrt": (0x3F800000, 0x40800000),
    "rsqrt": (0x3F800000, 0x40800000),
    "ex2": (0x3F800000, 0x40000000),
    "lg2": (0x3F000000, 0x40000000),
}


@cache
def device(architecture: int = 90) -> Table:
    """Return the unit of an architecture (compute capability times ten).

    Raises FileNotFoundError naming the architectures whose tables are here.
    """
    folder = TABLES / f"sm_{architecture}"
    if not folder.is_dir():
        known = ", ".join(sorted(p.name for p in TABLES.glob("sm_*")))
        raise FileNotFoundError(f"no tables of sm_{architecture} were read; there are {known}")
    return Table(results=_Folder(folder))


@dataclass(frozen=True)
class _Folder(Mapping[str, Array]):
    """Tables of a folder, unpacked when first asked for."""

    path: Path

    def __getitem__(self, name: str) -> Array:
        if name not in SPANS:
            raise KeyError(name)
        return _unpacked(self.path / f"{name}.xz")

    def __iter__(self) -> Iterator[str]:
        return iter(SPANS)

    def __len__(self) -> int:
        return len(SPANS)


def pack(results: Array) -> bytes:
    """Compress float32 answers: differences of their bits, signs in the lowest place, byte by byte."""
    steps = np.diff(results.view(np.int32).astype(np.int64), prepend=0).astype(np.int32)
    steps = (steps << 1) ^ (steps >> 31)
    return lzma.compress(steps.view(np.uint8).reshape(-1, 4).T.tobytes(), preset=6)


@cache
def _unpacked(path: Path) -> Array:
    planes = np.frombuffer(lzma.decompress(path.read_bytes()), dtype=np.uint8).reshape(4, -1)
    folded = np.ascontiguousarray(planes.T).view(np.uint32)[:, 0]
    steps = (folded >> np.uint32(1)).view(np.int32) ^ -(folded & np.uint32(1)).view(np.int32)
    return np.cumsum(steps, dtype=np.int32).view(np.float32)


@dataclass(frozen=True, kw_only=True)
class Table:
    """Answers bit for bit as a device's special-function unit gives them, with the code ptxas puts around it.

    `results`: per instruction the device's answers as float32: rcp and ex2 over the significands [1, 2),
    sqrt and rsqrt over [1, 4), lg2 over [1/2, 2). Instructions without a table are correctly rounded.
    How the answers of all other operands follow from these was checked on the device for every float32;
    see `verifier.machine.tables`.
    """

    results: Mapping[str, Array]
    exact: Correct = field(default_factory=Correct)

    def evaluate(self, name: str, *operands: Array) -> Array:
        """Answer as the device would."""
        if name == "div":
            scaled, reciprocal = quotient_factors(self, *operands)
            return np.asarray(scaled * reciprocal)
        if name == "div_fma":
            return fused_quotient(self, *operands)
        if name not in self.results:
            return self.exact.evaluate(name, *operands)
        x = np.asarray(operands[0], dtype=np.float32)
        with np.errstate(all="ignore"):
            return _AROUND[name](self.results[name], np.atleast_1d(x)).reshape(x.shape)


# Special-function unit: subnormal operands count as zero, subnormal results become zero.


def _parts(x: Array) -> tuple[Array, Array]:
    """Unbiased exponent and significand bits of float32."""
    bits = x.view(np.int32)
    return ((bits >> 23) & 0xFF) - 127, bits & 0x7FFFFF


def _unit_reciprocal(table: Array, x: Array) -> Array:
    exponent, significand = _parts(x)
    bits = table.view(np.int32)[significand] - (exponent << 23)
    bits = np.where(bits < 1 << 23, 0, bits)
    bits = np.where(exponent == -127, 0x7F800000, bits)
    result = np.copysign(np.where(exponent == 128, 0, bits).astype(np.int32).view(np.float32), x)
    return np.where(np.isnan(x), x, result)


def _unit_root(table: Array, x: Array, inverse: bool) -> Array:
    exponent, significand = _parts(x)
    odd = exponent & 1
    half = (exponent - odd) >> 1
    bits = table.view(np.int32)[significand | (odd << 23)] + ((-half if inverse else half) << 23)
    zero, infinity = (0x7F800000, 0) if inverse else (0, 0x7F800000)
    bits = np.where(exponent == -127, zero, np.where(exponent == 128, infinity, bits))
    result = bits.astype(np.int32).view(np.float32)
    invalid = np.isnan(x) | ((x < 0) & (exponent > -127))
    return np.where(invalid, np.float32(np.nan), np.where(exponent == -127, np.copysign(result, x), result))


def _unit_exponential(table: Array, x: Array) -> Array:
    """Two to the x cut to 23 binary places, in one's complement below zero unless x is then an integer."""
    steps = np.trunc(np.abs(np.clip(x, -256, 256)).astype(np.float64) * 2.0**23).astype(np.int64)
    steps = np.where(np.isnan(x), 0, steps)
    place = np.where(x < 0, np.where(steps & 0x7FFFFF, ~steps, -steps), steps)
    exponent = (place >> 23) - 1  # the table is of [1, 2)
    bits = table.view(np.int32)[place & 0x7FFFFF] + (exponent << 23)
    bits = np.where(bits < 1 << 23, 0, np.minimum(bits, 0x7F800000))
    return np.where(np.isnan(x), x, bits.astype(np.int32).view(np.float32))


def _unit_logarithm(table: Array, x: Array) -> Array:
    """Exponent plus logarithm of the significand, cut to 24 bits."""
    exponent, significand = _parts(x)
    above = exponent >= 0
    tail = np.abs(table[significand + np.where(above, 1 << 23, 0)]).astype(np.float64)
    total = tail + np.where(above, exponent, -exponent - 1)
    cut = (total.view(np.int64) & ~np.int64((1 << 29) - 1)).view(np.float64)
    result = np.where(above, cut, -cut).astype(np.float32)
    result = np.where(exponent == -127, np.float32(-np.inf), result)
    result = np.where(x == np.inf, x, result)
    return np.where(np.isnan(x) | ((x < 0) & (exponent > -127)), np.float32(np.nan), result)


# What ptxas puts around it, so that subnormals and the largest numbers come out (read from its machine code).

_SMALL = np.float32(2.0**-126)


def _reciprocal(table: Array, x: Array) -> Array:
    magnitude = np.abs(x)
    scale = np.where(magnitude > np.float32(2.0**126), np.float32(0.25), np.float32(1))
    scale = np.where(magnitude < _SMALL, np.float32(2.0**24), scale)
    return np.asarray(_unit_reciprocal(table, np.asarray(x * scale)) * scale)


def _square_root(table: Array, x: Array) -> Array:
    small = np.abs(x) < _SMALL
    result = _unit_root(table, np.where(small, x * np.float32(2.0**24), x), inverse=False)
    return np.where(small, result * np.float32(2.0**-12), result)


def _reciprocal_root(table: Array, x: Array) -> Array:
    small = np.abs(x) < _SMALL
    result = _unit_root(table, np.where(small, x * np.float32(2.0**24), x), inverse=True)
    return np.where(small, result * np.float32(2.0**12), result)


def _exponential(table: Array, x: Array) -> Array:
    low = x < -126
    result = _unit_exponential(table, np.where(low, x * np.float32(0.5), x))
    return np.where(low, result * result, result)


def _logarithm(table: Array, x: Array) -> Array:
    small = np.abs(x) < _SMALL
    result = _unit_logarithm(table, np.where(small, x * np.float32(2.0**24), x))
    return np.where(small, result - np.float32(24), result)


_AROUND: dict[str, Callable[[Array, Array], Array]] = {
    "rcp": _reciprocal,
    "sqrt": _square_root,
    "rsqrt": _reciprocal_root,
    "ex2": _exponential,
    "lg2": _logarithm,
}
