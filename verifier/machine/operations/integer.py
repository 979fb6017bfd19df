"""Integer arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.operations.operation import DTYPE, Operation, type_of, width_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from verifier.machine.arithmetic.numerics import Array

_INTEGERS = frozenset(f"{kind}{width}" for kind in "sub" for width in (8, 16, 32, 64))
_SIMPLE: dict[str, np.ufunc] = {"add": np.add, "sub": np.subtract, "min": np.minimum, "max": np.maximum}


def resolve(parts: list[str]) -> Operation | None:
    """Find an integer operation."""
    kind = type_of(parts)
    name = parts[0]
    if kind not in _INTEGERS or (len(parts) > 1 and parts[1] in ("global", "shared", "sync")):
        return None
    if name in ("addc", "subc", "madc") or "cc" in parts:
        return _with_carry(parts, kind)
    if name in ("add", "sub") and "sat" in parts:
        return Operation(name=name, sources=(kind,) * 2, results=(kind,), function=_saturating(name))
    if name in _SIMPLE:
        return Operation(name=name, sources=(kind,) * 2, results=(kind,), function=_SIMPLE[name], out=True)
    if name in ("mul", "mad", "mul24", "mad24"):
        return _multiply(parts, kind)
    if name in ("div", "rem"):
        function = _divide if name == "div" else _remainder
        return Operation(name=name, sources=(kind,) * 2, results=(kind,), function=function)
    if name in ("neg", "abs"):
        ufunc = np.negative if name == "neg" else np.abs
        return Operation(name=name, sources=(kind,), results=(kind,), function=ufunc, out=True)
    if name == "sad":
        return Operation(name=name, sources=(kind,) * 3, results=(kind,), function=_absolute_difference)
    return None


def _wider(kind: str) -> str:
    return f"{kind[0]}{2 * width_of(kind)}"


def _multiply(parts: list[str], kind: str) -> Operation | None:
    """`mul` and `mad` with `.lo`, `.hi` or `.wide`."""
    three = parts[0].startswith("mad")
    if "24" in parts[0]:
        return None
    if "wide" in parts:
        wide = DTYPE[_wider(kind)]

        def product(a: Array, b: Array) -> Array:
            return np.multiply(a, b, dtype=wide)

        result: str = _wider(kind)
        function: Callable[..., Array] = product
    elif "hi" in parts:
        result, function = kind, _high_product(kind)
    else:
        result = kind
        if not three:
            return Operation(name="mul", sources=(kind,) * 2, results=(kind,), function=np.multiply, out=True)
        function = np.multiply
    if not three:
        return Operation(name="mul", sources=(kind,) * 2, results=(result,), function=function)
    inner = function
    return Operation(
        name="mad",
        sources=(kind, kind, result),
        results=(result,),
        function=lambda a, b, c: inner(a, b) + c,
    )


def _high_product(kind: str) -> Callable[..., Array]:
    """Upper half of a product; 64-bit operands go by 32-bit halves."""
    width = width_of(kind)
    if width < 64:
        wide, narrow = DTYPE[_wider(kind)], DTYPE[kind]
        return lambda a, b: (np.multiply(a, b, dtype=wide) >> np.array(width, dtype=wide)).astype(narrow)
    if kind[0] == "s":
        return _high_signed
    return _high_unsigned


def _high_unsigned(a: Array, b: Array) -> Array:
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = a & mask, a >> shift, b & mask, b >> shift
    middle = a1 * b0 + ((a0 * b0) >> shift)
    other = a0 * b1 + (middle & mask)
    answer: Array = a1 * b1 + (middle >> shift) + (other >> shift)
    return answer


def _high_signed(a: Array, b: Array) -> Array:
    """Signed from unsigned: subtract what the sign bits added."""
    ua, ub = np.asarray(a).astype(np.uint64), np.asarray(b).astype(np.uint64)
    high = _high_unsigned(ua, ub)
    high = high - np.where(a < 0, ub, np.uint64(0)) - np.where(b < 0, ua, np.uint64(0))
    return high.astype(np.int64)


def _divide(a: Array, b: Array) -> Array:
    """Quotient rounded to zero; division by zero gives all ones, as the hardware does."""
    a, b = np.asarray(a), np.asarray(b)
    safe = np.where(b == 0, b.dtype.type(1), b)
    if a.dtype.kind == "u":
        quotient = a // safe
    else:
        quotient = a // safe
        quotient = quotient + ((quotient * safe != a) & ((a < 0) != (safe < 0)))
    ones = np.array(-1, dtype=np.int64).astype(a.dtype)
    return np.where(b == 0, ones, quotient).astype(a.dtype)


def _remainder(a: Array, b: Array) -> Array:
    """Remainder with the sign of the dividend."""
    a, b = np.asarray(a), np.asarray(b)
    return np.where(b == 0, a, a - _divide(a, b) * b).astype(a.dtype)


def _saturating(name: str) -> Callable[..., Array]:
    """`add.sat.s32` and `sub.sat.s32`."""

    def clamp(a: Array, b: Array) -> Array:
        wide = np.add(a, b, dtype=np.int64) if name == "add" else np.subtract(a, b, dtype=np.int64)
        return np.clip(wide, -(2**31), 2**31 - 1).astype(np.int32)

    return clamp


def _absolute_difference(a: Array, b: Array, c: Array) -> Array:
    return np.where(a < b, b - a, a - b) + c


def _with_carry(parts: list[str], kind: str) -> Operation | None:
    """`add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc`, `madc`: the condition code is one more bit."""
    unsigned = DTYPE[f"u{width_of(kind)}"]
    name, carry_in, carry_out = parts[0], parts[0] in ("addc", "subc", "madc"), "cc" in parts
    multiply = name.startswith("mad")
    high = _high_product(f"u{width_of(kind)}" if kind[0] != "s" else kind) if "hi" in parts else None

    def compute(*operands: Array) -> Array | tuple[Array, ...]:
        values = [np.asarray(x).astype(unsigned) for x in operands[: 3 if multiply else 2]]
        extra = operands[-1].astype(unsigned) if carry_in else np.zeros(1, unsigned)[0]
        if multiply:
            a, b = operands[0], operands[1]
            product = (high(a, b) if high else np.multiply(a, b)).astype(unsigned)
            values = [product, values[2]]
        if name.startswith("sub"):
            result = values[0] - values[1] - extra
            carry = (values[0] < values[1]) | ((values[0] == values[1]) & (extra != 0))
        else:
            partial = values[0] + values[1]
            result = partial + extra
            carry = (partial < values[0]) | (result < partial)
        result = result.astype(DTYPE[kind])
        return (result, carry) if carry_out else result

    return Operation(
        name=name,
        sources=(kind,) * (3 if multiply else 2),
        results=(kind,),
        function=compute,
        carry_in=carry_in,
        carry_out=carry_out,
    )
