"""Arithmetic of float32 and float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.arithmetic import numerics
from verifier.machine.operations.operation import Operation, type_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from verifier.machine.arithmetic.approximation import Approximation
    from verifier.machine.arithmetic.numerics import Array

_PLAIN: dict[str, np.ufunc] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
_APPROXIMATE = frozenset({"rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh"})
_ARITY = {"fma": 3, "mad": 3, "divfma": 3, "neg": 1, "abs": 1, "copysign": 2, "testp": 1}
ROUNDING_MODES = ("rn", "rz", "rm", "rp")
_MIXED = ("f16", "bf16")


def resolve(parts: list[str]) -> Operation | None:
    """Find a float32, float64 or mixed-precision operation."""
    kind = type_of(parts)
    if kind not in ("f32", "f64") and not (parts[-1] in _MIXED and "f32" in parts[1:-1]):
        return None
    if parts[0] in ("cvt", "setp", "set", "selp", "mov", "slct", "shfl", "redux"):
        return None
    if parts[-1] in _MIXED:
        return _mixed(parts)
    function = single_or_double(parts, kind)
    if function is None:
        return None
    name = parts[0]
    unary = name in _APPROXIMATE or name in ("neg", "abs", "testp")
    arity = 1 if unary else _ARITY.get(name, 2)
    if name in ("min", "max") and "three" in parts:
        arity = 3
    plain = isinstance(function, np.ufunc)
    model = getattr(function, "model", False)
    result = "pred" if name == "testp" else kind
    if "ftz" in parts and kind == "f32" and name != "testp":
        function, plain = _flushed(function, model), False
    if "sat" in parts:
        function, plain = _saturated(function, model), False
    return Operation(
        name=name, sources=(kind,) * arity, results=(result,), function=function, out=plain, model=model
    )


def _mode(parts: list[str]) -> str:
    return next((part for part in parts if part in ROUNDING_MODES), "rn")


def single_or_double(parts: list[str], kind: str) -> Callable[..., Array] | None:
    """Choose the function without its `.ftz` and `.sat`."""
    name, mode, single = parts[0], _mode(parts), kind == "f32"
    if name in _PLAIN:
        return _basic(_PLAIN[name], mode, single)
    if name in ("fma", "mad"):
        return _multiply_add(mode, single)
    if name == "divfma":
        return _modelled("div_fma")
    if name == "div":
        return _division(parts, mode, single)
    if name in ("rcp", "sqrt") and "approx" not in parts:
        return _root_or_reciprocal(name, mode, single)
    if name in _APPROXIMATE:
        return _modelled(name if single else f"{name}_f64")
    simple: dict[str, Callable[..., Array]] = {
        "neg": _flip_sign,
        "abs": _drop_sign,
        "min": extremum(parts, np.fmin, np.minimum),
        "max": extremum(parts, np.fmax, np.maximum),
        "copysign": lambda a, b: np.copysign(b, a),
    }
    if name == "testp":
        return _test(parts[1])
    return simple.get(name)


def _basic(ufunc: Callable[..., Array], mode: str, single: bool) -> Callable[..., Array] | None:
    if mode == "rn":
        return ufunc
    if single:
        return lambda a, b: numerics.binary32_directed(ufunc, a, b, mode)
    return None


def _multiply_add(mode: str, single: bool) -> Callable[..., Array] | None:
    if single:
        if mode == "rn":
            return numerics.fma32
        return lambda a, b, c: numerics.fma32_directed(a, b, c, mode)
    return numerics.fma64 if mode == "rn" else None


def _division(parts: list[str], mode: str, single: bool) -> Callable[..., Array] | None:
    if "full" in parts:
        return _modelled("div")
    if "approx" in parts:
        return _quick_division()
    if single:
        return np.divide if mode == "rn" else lambda a, b: numerics.divide32_directed(a, b, mode)
    return np.divide if mode == "rn" else None


def _root_or_reciprocal(name: str, mode: str, single: bool) -> Callable[..., Array] | None:
    if name == "sqrt":
        if mode == "rn":
            return np.sqrt
        return (lambda a: numerics.sqrt32_directed(a, mode)) if single else None
    if mode == "rn":
        return np.reciprocal if not single else lambda a: np.divide(np.float32(1), a)
    return (lambda a: numerics.divide32_directed(np.float32(1), a, mode)) if single else None


def _modelled(name: str) -> Callable[..., Array]:
    """Wrap an instruction whose answer depends on the model of the device."""

    def evaluate(model: Approximation, *operands: Array) -> Array:
        answer: Array = model.evaluate(name, *operands)
        return answer

    evaluate.model = True  # type: ignore[attr-defined]
    return evaluate


def _quick_division() -> Callable[..., Array]:
    """`div.approx`: like `div.full`, but the reciprocal of a divisor beyond 2^126 counts as zero."""

    def evaluate(model: Approximation, a: Array, b: Array) -> Array:
        beyond = (np.abs(b) > np.float32(2.0**126)) & np.isfinite(b)
        lost = np.asarray(a * np.copysign(np.float32(0), b))
        return np.where(beyond, lost, model.evaluate("div", a, b))

    evaluate.model = True  # type: ignore[attr-defined]
    return evaluate


def _flip_sign(a: Array) -> Array:
    """Negate by the sign bit, so that NaN keeps its payload."""
    return np.negative(a)


def _drop_sign(a: Array) -> Array:
    return np.abs(a)


def extremum(
    parts: list[str], quiet: Callable[..., Array], propagating: Callable[..., Array]
) -> Callable[..., Array]:
    """Minimum or maximum in which -0 < +0; NaN wins only with `.NaN`."""
    base = propagating if "NaN" in parts else quiet
    larger = quiet is np.fmax
    absolute = "xorsign" in parts

    def choose(*operands: Array) -> Array:
        values = operands
        if absolute:
            values = tuple(np.abs(v) for v in operands)
        result = values[0]
        for value in values[1:]:
            result = _signed_zero(base(result, value), result, value, larger)
        if absolute:
            sign = np.signbit(operands[0]) ^ np.signbit(operands[1])
            result = np.where(sign, -result, result)
        return result

    return choose


def _signed_zero(result: Array, a: Array, b: Array, larger: bool) -> Array:
    """Order the two zeros, which numpy leaves to chance."""
    zero = (a == 0) & (b == 0)
    if not zero.any():
        return result
    sign = (np.signbit(a) & np.signbit(b)) if larger else (np.signbit(a) | np.signbit(b))
    signed = np.where(sign, result.dtype.type(-0.0), result.dtype.type(0.0))
    return np.where(zero, signed, result)


def _test(which: str) -> Callable[..., Array] | None:
    def subnormal(a: Array) -> Array:
        answer: Array = (np.abs(a) < np.finfo(a.dtype).tiny) & (a != 0)
        return answer

    known: dict[str, Callable[..., Array]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~np.isnan(a),
        "notanumber": np.isnan,
        "normal": lambda a: np.isfinite(a) & (np.abs(a) >= np.finfo(a.dtype).tiny),
        "subnormal": subnormal,
    }
    return known.get(which)


def _flushed(function: Callable[..., Array], model: bool) -> Callable[..., Array]:
    flush = numerics.flush32
    if model:
        return lambda m, *xs: flush(function(m, *(flush(x) for x in xs)))
    return lambda *xs: flush(function(*(flush(x) for x in xs)))


def _saturated(function: Callable[..., Array], model: bool) -> Callable[..., Array]:
    if model:
        return lambda m, *xs: numerics.saturate(function(m, *xs))
    return lambda *xs: numerics.saturate(function(*xs))


def _mixed(parts: list[str]) -> Operation | None:
    """`add.f32.f16` and its like: narrow operands are widened exactly, the sum is float32."""
    narrow, mode, name = parts[-1], _mode(parts), parts[0]
    widen = numerics.decode_bf16 if narrow == "bf16" else numerics.half_to_single
    if name == "fma":
        fused = _multiply_add(mode, single=True)
        if fused is None:
            return None
        function: Callable[..., Array] = lambda a, b, c: fused(widen(a), widen(b), c)  # noqa: E731
        sources: tuple[str, ...] = (narrow, narrow, "f32")
    elif name in ("add", "sub"):
        plain = _basic(_PLAIN[name], mode, single=True)
        if plain is None:
            return None
        function, sources = (lambda a, c: plain(widen(a), c)), (narrow, "f32")
    else:
        return None
    if "sat" in parts:
        function = _saturated(function, model=False)
    return Operation(name=name, sources=sources, results=("f32",), function=function)
