"""Arithmetic of float16, bfloat16 and the packed pairs of float16, bfloat16 and float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.arithmetic import numerics
from verifier.machine.operations import floating
from verifier.machine.operations.floating import ROUNDING_MODES, extremum, single_or_double
from verifier.machine.operations.operation import DTYPE, Operation, type_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from verifier.machine.arithmetic.numerics import Array

_SCALAR = {"f16x2": "f16", "bf16x2": "bf16", "f32x2": "f32"}
_ARITY = {"fma": 3, "neg": 1, "abs": 1, "ex2": 1, "tanh": 1, "lg2": 1}
_F16_MIN_NORMAL = np.float32(2.0**-14)


def resolve(parts: list[str]) -> Operation | None:
    """Find an operation on float16, bfloat16 or packed operands."""
    kind = type_of(parts)
    if kind not in ("f16", "bf16", *_SCALAR) or parts[0] in ("cvt", "setp", "set", "selp", "mov", "slct"):
        return None
    scalar = _SCALAR.get(kind, kind)
    model = parts[0] in ("ex2", "tanh", "lg2")
    function = _packed_single(parts) if scalar == "f32" else _narrow_function(parts, scalar)
    if function is None:
        return None
    if kind in _SCALAR:
        function = _packed(function, scalar, DTYPE[kind], model)
    return Operation(
        name=parts[0],
        sources=(kind,) * _ARITY.get(parts[0], 2),
        results=(kind,),
        function=function,
        model=model,
    )


def _packed_single(parts: list[str]) -> Callable[..., Array] | None:
    """Give the float32 function that `f32x2` applies twice."""
    scalar = floating.resolve([*(p for p in parts if p != "f32x2"), "f32"])
    return scalar.function if scalar else None


def _packed(function: Callable[..., Array], scalar: str, packed: str, model: bool) -> Callable[..., Array]:
    """Apply a scalar function to both halves of a register."""
    half = DTYPE[scalar]

    def split(x: Array) -> Array:
        return np.ascontiguousarray(np.asarray(x)[..., None]).view(half)

    def join(result: Array) -> Array:
        return np.ascontiguousarray(result).view(packed)[..., 0]

    if model:
        return lambda m, *xs: join(function(m, *(split(x) for x in xs)))
    return lambda *xs: join(function(*(split(x) for x in xs)))


def _narrow_function(parts: list[str], scalar: str) -> Callable[..., Array] | None:
    """Choose a float16 or bfloat16 function and wrap its modifiers."""
    name = parts[0]
    mode = next((p for p in parts if p in ROUNDING_MODES), "rn")
    if mode != "rn":
        return None
    function = _base(name, parts, scalar)
    if function is None:
        return None
    if "ftz" in parts and scalar == "f16":
        function = _flush16(function, name in ("ex2", "tanh", "lg2"))
    if "sat" in parts and scalar == "f16":
        inner = function
        function = lambda *xs: numerics.saturate(inner(*xs))  # noqa: E731
    if "relu" in parts:
        function = _relu(function, scalar)
    return function


def _base(name: str, parts: list[str], scalar: str) -> Callable[..., Array] | None:
    """Give the function without modifiers."""
    if name in ("neg", "abs"):
        return _sign_bits(name, scalar)
    if name == "fma":
        return numerics.fma16 if scalar == "f16" else numerics.fma_bf16
    if name in ("min", "max"):
        chooser = extremum(parts, *((np.fmin, np.minimum) if name == "min" else (np.fmax, np.maximum)))
        return _through_single(chooser, scalar)
    if name in ("add", "sub", "mul"):
        plain = single_or_double([name, "f32"], "f32")
        return None if plain is None else _through_single(plain, scalar)
    if name in ("ex2", "tanh", "lg2"):
        return _through_single(lambda m, x: m.evaluate(name, x), scalar, model=True)
    return None


def _widen(scalar: str) -> Callable[[Array], Array]:
    return numerics.decode_bf16 if scalar == "bf16" else numerics.half_to_single


def _through_single(function: Callable[..., Array], scalar: str, model: bool = False) -> Callable[..., Array]:
    """Compute in float32 and round once more, which is innocuous for one operation on narrow operands."""
    widen = _widen(scalar)
    narrow: Callable[..., Array] = numerics.encode_bf16 if scalar == "bf16" else numerics.narrow16
    if model:
        return lambda m, x: narrow(function(m, widen(x)))
    return lambda *xs: narrow(function(*(widen(x) for x in xs)))


def _sign_bits(name: str, scalar: str) -> Callable[..., Array]:
    """Change the sign bit alone."""
    dtype = DTYPE[scalar]
    if name == "neg":
        return lambda x: (np.asarray(x).view(np.uint16) ^ np.uint16(0x8000)).view(dtype)
    return lambda x: (np.asarray(x).view(np.uint16) & np.uint16(0x7FFF)).view(dtype)


def _flush16(function: Callable[..., Array], model: bool) -> Callable[..., Array]:
    """`.ftz` on float16: subnormal operands and results become zeros of the same sign."""

    def flush(x: Array) -> Array:
        small = np.abs(x) < _F16_MIN_NORMAL
        return np.where(small, np.copysign(np.float16(0), x), x)

    if model:
        return lambda m, *xs: flush(function(m, *(flush(x) for x in xs)))
    return lambda *xs: flush(function(*(flush(x) for x in xs)))


def _relu(function: Callable[..., Array], scalar: str) -> Callable[..., Array]:
    """`.relu`: negative results become zero; NaN stays."""
    if scalar == "f16":

        def clamp16(x: Array) -> Array:
            return np.where(x < 0, np.float16(0), x)

        return lambda *xs: clamp16(function(*xs))

    def clamp_bf16(x: Array) -> Array:
        return np.where(numerics.decode_bf16(x) < 0, np.uint16(0), x)

    return lambda *xs: clamp_bf16(function(*xs))
