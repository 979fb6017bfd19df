"""Comparisons, selections and moves of one value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.arithmetic import numerics
from verifier.machine.operations.operation import DTYPE, Operation, type_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from verifier.machine.arithmetic.numerics import Array, ArrayOrNumber

_ORDERED: dict[str, np.ufunc] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
_JOIN: dict[str, np.ufunc] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def resolve(parts: list[str]) -> Operation | None:
    """Find `setp`, `set`, `selp`, `slct` or a plain `mov`."""
    name, kind = parts[0], type_of(parts)
    if name == "setp":
        return _set_predicate(parts, kind)
    if name == "set":
        return _set_value(parts)
    if name == "selp":
        return Operation(
            name="selp",
            sources=(kind, kind, "pred"),
            results=(kind,),
            function=lambda a, b, p: np.where(p, a, b),
        )
    if name == "slct":
        sign = parts[-1]
        return Operation(
            name="slct",
            sources=(parts[-2], parts[-2], sign),
            results=(parts[-2],),
            function=lambda a, b, c: np.where(c >= 0, a, b),
        )
    if name == "mov" and kind:
        function = np.positive if kind != "pred" else np.array
        return Operation(name="mov", sources=(kind,), results=(kind,), function=function, moves=True)
    return None


def _compare(name: str, kind: str, flush: bool) -> Callable[..., Array] | None:
    """Give the comparison; the `u` forms are true when an operand is NaN."""
    floating = kind in ("f16", "f32", "f64", "bf16")
    if not floating:
        return _ORDERED.get(name)
    widen: Callable[..., Array] = numerics.decode_bf16 if kind == "bf16" else (lambda x: x)
    if flush and kind == "f32":
        widen = numerics.flush32
    if name in ("num", "nan"):

        def test(a: Array, b: Array) -> Array:
            answer: Array = np.isnan(widen(a)) | np.isnan(widen(b))
            return answer

        return test if name == "nan" else lambda a, b: ~test(a, b)
    unordered = name.endswith("u") and name[:-1] in _ORDERED
    base = _ORDERED.get(name[:-1] if unordered else name)
    if base is None:
        return None
    if not unordered:
        if base is np.not_equal:
            # `ne` is ordered: false for NaN, where numpy says true.
            return lambda a, b: (widen(a) < widen(b)) | (widen(a) > widen(b))
        return base if kind != "bf16" and not flush else lambda a, b: base(widen(a), widen(b))
    opposite: dict[np.ufunc, Callable[[Array, Array], Array]] = {
        np.equal: lambda a, b: ~((a < b) | (a > b)),
        np.not_equal: np.not_equal,
        np.less: lambda a, b: ~(a >= b),
        np.less_equal: lambda a, b: ~(a > b),
        np.greater: lambda a, b: ~(a <= b),
        np.greater_equal: lambda a, b: ~(a < b),
    }
    return lambda a, b: opposite[base](widen(a), widen(b))


def _set_predicate(parts: list[str], kind: str) -> Operation | None:
    """`setp.cmp{.boolop}{.ftz}.type p|q, a, b{, c}`."""
    if kind in ("f16x2", "bf16x2"):
        return _set_packed(parts, kind)
    compare = _compare(parts[1], kind, "ftz" in parts)
    if compare is None:
        return None
    joining = next((p for p in parts[2:] if p in _JOIN), None)
    if joining is None:
        plain = isinstance(compare, np.ufunc)
        return Operation(name="setp", sources=(kind, kind), results=("pred",), function=compare, out=plain)
    join = _JOIN[joining]
    return Operation(
        name="setp",
        sources=(kind, kind, "pred"),
        results=("pred",),
        function=lambda a, b, c: join(compare(a, b), c),
    )


def _set_packed(parts: list[str], kind: str) -> Operation | None:
    """Compare both halves, giving two predicates."""
    scalar = kind[:-2]
    compare = _compare(parts[1], scalar, flush=False)
    if compare is None:
        return None

    def halves(x: Array) -> Array:
        return np.ascontiguousarray(np.asarray(x)[..., None]).view(DTYPE[scalar])

    def both(a: Array, b: Array) -> tuple[Array, Array]:
        result = compare(halves(a), halves(b))
        return result[..., 0], result[..., 1]

    return Operation(name="setp", sources=(kind, kind), results=("pred", "pred"), function=both)


def _set_value(parts: list[str]) -> Operation | None:
    """`set.cmp.dtype.stype`: all ones or 1.0 where the comparison holds."""
    result, kind = parts[-2], parts[-1]
    if kind in ("f16x2", "bf16x2"):
        return _set_packed_value(parts, result, kind)
    compare = _compare(parts[1], kind, "ftz" in parts)
    if compare is None:
        return None
    yes: ArrayOrNumber = np.float32(1) if result == "f32" else np.array(-1, np.int64).astype(DTYPE[result])
    no = np.array(0).astype(DTYPE[result])
    return Operation(
        name="set",
        sources=(kind, kind),
        results=(result,),
        function=lambda a, b: np.where(compare(a, b), yes, no),
    )


def _set_packed_value(parts: list[str], result: str, kind: str) -> Operation | None:
    """Compare both halves into both halves of the result."""
    scalar = kind[:-2]
    compare = _compare(parts[1], scalar, flush=False)
    if compare is None:
        return None
    one = {"f16x2": 0x3C00, "bf16x2": 0x3F80}.get(result, 0xFFFF)

    def both(a: Array, b: Array) -> Array:
        split = [np.ascontiguousarray(np.asarray(x)[..., None]).view(DTYPE[scalar]) for x in (a, b)]
        bits = np.where(compare(*split), np.uint16(one), np.uint16(0))
        return np.ascontiguousarray(bits).view(np.uint32)[..., 0]

    return Operation(name="set", sources=(kind, kind), results=(result,), function=both)
