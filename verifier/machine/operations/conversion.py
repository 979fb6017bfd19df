"""`cvt` in all its widths and roundings."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from verifier.machine.arithmetic import numerics
from verifier.machine.arithmetic.numerics import Array
from verifier.machine.operations.operation import DTYPE, Operation, width_of
from verifier.machine.ptx.syntax import BITS

if TYPE_CHECKING:
    from collections.abc import Callable

_TO_INTEGER: dict[str, np.ufunc] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_MODES = ("rn", "rz", "rm", "rp", "rna")


def resolve(parts: list[str]) -> Operation | None:
    """Find a conversion `cvt{.rounding}{.ftz}{.sat}.to.from`."""
    if parts[0] != "cvt" or "pack" in parts:
        return None
    types = [p for p in parts if p in BITS]
    if len(types) != 2:
        return None
    to, origin = types
    function = _function(parts, to, origin)
    if function is None:
        return None
    packed = to in ("f16x2", "bf16x2", "e4m3x2", "e5m2x2") and origin == "f32"
    return Operation(
        name="cvt",
        sources=(origin,) * (2 if packed else 1),
        results=(to,),
        function=function,
        casts=to[0] in "us" and origin[0] in "us" and "sat" not in parts,
    )


def _function(parts: list[str], to: str, origin: str) -> Callable[..., Array] | None:
    modes = [p for p in parts if p in _MODES]
    if "rs" in parts or len(modes) > 1:
        return None
    mode = modes[0] if modes else "rn"
    relu, saturate, flush = "relu" in parts, "sat" in parts, "ftz" in parts
    if to in ("e4m3x2", "e5m2x2"):
        return _to_bytes(to, origin, relu)
    if origin in ("e4m3x2", "e5m2x2"):
        return _from_bytes(origin, relu) if to == "f16x2" else None
    if to in ("f16x2", "bf16x2"):
        return _pack_two(to, mode, relu, "satfinite" in parts)
    if origin in ("f16x2", "bf16x2", "f32x2") or "satfinite" in parts or mode == "rna":
        return None
    if _is_float(to):
        return _to_float(parts, to, origin, mode, saturate=saturate, flush=flush, relu=relu)
    if _is_float(origin):
        return _float_to_integer(parts, to, origin, flush)
    return _integer_to_integer(to, origin, saturate)


def _is_float(kind: str) -> bool:
    return kind in ("f16", "bf16", "f32", "f64")


def widen(kind: str) -> Callable[..., Array]:
    """Exact float32 or float64 values of a float type."""
    if kind == "bf16":
        return numerics.decode_bf16
    if kind == "f16":
        return numerics.half_to_single
    return np.positive


def _to_float(
    parts: list[str], to: str, origin: str, mode: str, *, saturate: bool, flush: bool, relu: bool
) -> Callable[..., Array] | None:
    """Float or integer to float."""
    steps: list[Callable[..., Array] | None] = []
    if _is_float(origin):
        steps.append(widen(origin))
        if flush and origin == "f32":
            steps.append(numerics.flush32)
        whole = next((p for p in parts if p in _TO_INTEGER), None)
        if whole:
            steps.append(_TO_INTEGER[whole])
        steps.append(_narrower(to, origin, mode))
    else:
        steps.append(_from_integer(to, origin, mode))
    if flush and to == "f32":
        steps.append(numerics.flush32)
    if saturate:
        steps.append(numerics.saturate)
    if relu:
        steps.append(_relu(to))
    known = [step for step in steps if step is not None and step is not np.positive]
    if None in steps:
        return None
    if len(known) == 1:
        return known[0]

    def chain(x: Array) -> Array:
        for step in known:
            x = step(x)
        return x

    return chain if known else np.positive


def _narrower(to: str, origin: str, mode: str) -> Callable[..., Array]:
    """Round a float32 or float64 to the target format."""
    if to == "f16":
        return (lambda x: x.astype(np.float16)) if origin == "f16" else lambda x: numerics.narrow16(x, mode)
    if to == "bf16":
        if origin == "f64":
            return lambda x: numerics.encode_bf16(numerics.narrow_odd32(x), mode)
        return lambda x: numerics.encode_bf16(x, mode)
    if to == "f32" and origin == "f64":
        return lambda x: numerics.narrow(x, np.float32, mode)
    if to == "f64" and origin != "f64":
        return lambda x: x.astype(np.float64)
    return np.positive


def _relu(to: str) -> Callable[..., Array]:
    if to == "bf16":
        return lambda x: np.where(numerics.decode_bf16(x) < 0, np.uint16(0), x)
    return lambda x: np.where(x < 0, x.dtype.type(0), x)


def _from_integer(to: str, origin: str, mode: str) -> Callable[..., Array] | None:
    """Integer to float: exact in float64 below 54 bits, else by numpy's correctly rounded cast."""
    if width_of(origin) == 64 and (mode != "rn" or to not in ("f32", "f64")):
        return None
    if to == "f64":
        return lambda x: x.astype(np.float64)
    if mode == "rn" and to == "f32":
        return lambda x: x.astype(np.float32)
    if to == "bf16":
        return lambda x: numerics.encode_bf16(numerics.narrow_odd32(x.astype(np.float64)), mode)
    target: type[np.floating[Any]] = np.float16 if to == "f16" else np.float32
    return lambda x: numerics.narrow(x.astype(np.float64), target, mode)


def _float_to_integer(parts: list[str], to: str, origin: str, flush: bool) -> Callable[..., Array]:
    """Float to integer: rounded as told, clamped to the range.

    NaN gives 0, or the top bit alone when the source is f64 or the result has 64 bits (PTX ISA on `cvt`).
    """
    rounding = next((_TO_INTEGER[p] for p in parts if p in _TO_INTEGER), np.trunc)
    exact, dtype = widen(origin), np.dtype(DTYPE[to])
    info = np.iinfo(dtype)
    wide = origin == "f64" or info.bits == 64
    of_nan = dtype.type(info.min or 1 << (info.bits - 1)) if wide else dtype.type(0)

    def convert(x: Array) -> Array:
        value = exact(numerics.flush32(x) if flush and origin == "f32" else x)
        whole = rounding(value.astype(np.float64))
        invalid = np.isnan(whole)
        whole = np.where(invalid, 0.0, whole)
        inside = np.clip(whole, float(info.min), float(info.max))
        # 2^63 and 2^64 are representable in float64, the largest integers are not.
        too_big = whole >= float(info.max)
        safe = np.where(too_big, 0.0, inside)
        return np.where(invalid, of_nan, np.where(too_big, dtype.type(info.max), safe.astype(dtype)))

    return convert


def _integer_to_integer(to: str, origin: str, saturate: bool) -> Callable[..., Array]:
    """Extend by the type of the source, truncate, or clamp with `.sat`."""
    dtype = np.dtype(DTYPE[to])
    if not saturate:
        return lambda x: x.astype(dtype)
    info = np.iinfo(dtype)
    source = np.iinfo(np.dtype(DTYPE[origin]))
    low, high = max(info.min, source.min), min(info.max, source.max)
    return lambda x: np.clip(x, low, high).astype(dtype)


def _pack_two(to: str, mode: str, relu: bool, finite: bool) -> Callable[..., Array] | None:
    """`cvt.f16x2.f32 d, a, b`: a goes to the upper half."""
    if finite:
        return None
    scalar = to[:-2]
    narrow = _narrower(scalar, "f32", mode)
    clamp = _relu(scalar) if relu else None

    def pack(a: Array, b: Array) -> Array:
        halves = [narrow(x) for x in (a, b)]
        if clamp:
            halves = [clamp(x) for x in halves]
        upper, lower = (np.asarray(x).view(np.uint16).astype(np.uint32) for x in halves)
        return (upper << np.uint32(16)) | lower

    return pack


@lru_cache(maxsize=2)
def _byte_values(kind: str) -> Array:
    """Float16 values of the 256 codes of e4m3 or e5m2."""
    if kind == "e5m2x2":
        return (np.arange(256, dtype=np.uint16) << np.uint16(8)).view(np.float16)
    code = np.arange(256)
    exponent, fraction = (code >> 3) & 15, code & 7
    value = np.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0 ** (exponent - 10.0))
    value = np.where((code & 0x7F) == 0x7F, np.nan, value)
    return np.where(code & 0x80, -value, value).astype(np.float16)


def _from_bytes(kind: str, relu: bool) -> Callable[..., Array]:
    def unpack(x: Array) -> Array:
        octets = np.ascontiguousarray(np.asarray(x)[..., None]).view(np.uint8)
        values = _byte_values(kind)[octets]
        if relu:
            values = np.where(values < 0, np.float16(0), values)
        return np.ascontiguousarray(values).view(np.uint32)[..., 0]

    return unpack


def _to_bytes(kind: str, origin: str, relu: bool) -> Callable[..., Array] | None:
    """Round to nearest even among the finite codes, saturating."""

    def encode(x: Array) -> Array:
        table = _byte_values(kind)[:128].astype(np.float64)
        finite = table[np.isfinite(table)]
        wide = np.asarray(x).astype(np.float64)
        wide = np.where(wide < 0, 0.0, wide) if relu else wide
        magnitude = np.minimum(np.abs(wide), finite[-1])
        upper = np.searchsorted(finite, magnitude).clip(1, len(finite) - 1)
        lower = upper - 1
        below, above = magnitude - finite[lower], finite[upper] - magnitude
        pick_upper = (above < below) | ((above == below) & (upper % 2 == 0))
        code = np.where(pick_upper, upper, lower)
        code = np.where(np.isnan(wide), 0x7F, code)
        answer: Array = (code | (np.signbit(wide) * 0x80)).astype(np.uint16)
        return answer

    if origin == "f32":
        return lambda a, b: (encode(a) << np.uint16(8)) | encode(b)

    def from_pair(x: Array) -> Array:
        halves = np.ascontiguousarray(np.asarray(x)[..., None]).view(np.float16)
        return (encode(halves[..., 1]) << np.uint16(8)) | encode(halves[..., 0])

    return from_pair if origin == "f16x2" else None
