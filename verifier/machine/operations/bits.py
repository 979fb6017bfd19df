"""Logic, shifts, fields and permutations of bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.operations.operation import DTYPE, Operation, type_of, width_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from verifier.machine.arithmetic.numerics import Array

_LOGIC: dict[str, np.ufunc] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def resolve(parts: list[str]) -> Operation | None:
    """Find an operation on bit patterns."""
    name, kind = parts[0], type_of(parts)
    if kind == "" or "f" in kind:
        return None
    if name in _LOGIC:
        return Operation(name=name, sources=(kind,) * 2, results=(kind,), function=_LOGIC[name], out=True)
    if name == "not":
        return Operation(name=name, sources=(kind,), results=(kind,), function=np.invert, out=True)
    if kind == "pred":
        return None
    if name in ("shl", "shr"):
        return Operation(name=name, sources=(kind, "u32"), results=(kind,), function=_shift(name, kind))
    builders: dict[str, tuple[tuple[str, ...], str, Callable[..., Array]]] = {
        "cnot": (("",), "", lambda a: (a == 0).astype(a.dtype)),
        "lop3": (("", "", "", "u32"), "", _truth_table),
        "popc": (("",), "u32", lambda a: np.bitwise_count(a).astype(np.uint32)),
        "clz": (("",), "u32", _leading_zeros(width_of(kind))),
        "brev": (("",), "", _reverse(width_of(kind))),
        "bfind": (("",), "u32", _find_leading(parts, kind)),
        "bfe": (("", "u32", "u32"), "", _extract(kind)),
        "bfi": (("", "", "u32", "u32"), "", _insert(width_of(kind))),
        "shf": (("", "", "u32"), "", _funnel(parts)),
        "prmt": (("", "", "u32"), "", _permute_bytes),
        "bmsk": (("u32", "u32"), "", _mask(parts)),
        "szext": (("", "u32"), "", _extend(kind)),
    }
    if name not in builders or (name == "prmt" and len(parts) > 2):
        return None
    sources, result, function = builders[name]
    return Operation(
        name=name,
        sources=tuple(source or kind for source in sources),
        results=(result or kind,),
        function=function,
    )


def _shift(name: str, kind: str) -> Callable[..., Array]:
    """Shifts clamp their distance at the width: zeros, or copies of the sign, remain."""
    width, dtype = width_of(kind), np.dtype(DTYPE[kind])
    if name == "shl":

        def left(a: Array, distance: Array) -> Array:
            moved = np.left_shift(a, np.minimum(distance, width - 1).astype(dtype))
            answer: Array = np.where(distance >= width, dtype.type(0), moved)
            return answer

        return left
    if kind[0] == "s":
        return lambda a, distance: np.right_shift(a, np.minimum(distance, width - 1).astype(dtype))

    def right(a: Array, distance: Array) -> Array:
        moved = np.right_shift(a, np.minimum(distance, width - 1).astype(dtype))
        answer: Array = np.where(distance >= width, dtype.type(0), moved)
        return answer

    return right


def _truth_table(a: Array, b: Array, c: Array, table: Array) -> Array:
    """`lop3`: each bit of the result is looked up by the bits of a, b and c."""
    code = int(np.asarray(table).reshape(-1)[0])
    result: Array = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), dtype=a.dtype)
    for row in range(8):
        if code >> row & 1:
            result = result | ((a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c))
    return np.asarray(result)


def _leading_zeros(width: int) -> Callable[..., Array]:
    def count(a: Array) -> Array:
        spread = np.asarray(a).astype(f"u{width // 8}")
        for step in (1, 2, 4, 8, 16, 32):
            if step < width:
                spread = spread | (spread >> np.array(step, dtype=spread.dtype))
        answer: Array = (width - np.bitwise_count(spread).astype(np.int64)).astype(np.uint32)
        return answer

    return count


def _find_leading(parts: list[str], kind: str) -> Callable[..., Array]:
    """`bfind`: place of the highest significant bit, all ones if there is none."""
    width = width_of(kind)
    zeros = _leading_zeros(width)

    def find(a: Array) -> Array:
        magnitude = np.where(a < 0, ~a, a) if kind[0] == "s" else a
        leading = zeros(magnitude)
        place = leading if "shiftamt" in parts else np.uint32(width - 1) - leading
        return np.where(leading == width, np.uint32(0xFFFFFFFF), place)

    return find


def _reverse(width: int) -> Callable[..., Array]:
    def reverse(a: Array) -> Array:
        octets = np.ascontiguousarray(np.asarray(a)[..., None]).view(np.uint8)
        flipped = np.packbits(
            np.unpackbits(octets, axis=-1, bitorder="little")[..., ::-1], axis=-1, bitorder="little"
        )
        return flipped.view(f"u{width // 8}")[..., 0]

    return reverse


def _extract(kind: str) -> Callable[..., Array]:
    """`bfe`: a field of `length` bits from `start`, sign-extended for signed types."""
    width, dtype = width_of(kind), np.dtype(DTYPE[kind])
    unsigned = np.dtype(f"u{width // 8}")

    def extract(a: Array, start: Array, length: Array) -> Array:
        start, length = start & np.uint32(0xFF), length & np.uint32(0xFF)
        bits = np.asarray(a).view(unsigned)
        moved = np.where(start >= width, 0, bits >> np.minimum(start, width - 1).astype(unsigned))
        mask = _low_mask(length, width)
        field = moved.astype(unsigned) & mask
        if dtype.kind == "i":
            place = np.minimum(start + length - np.uint32(1), np.uint32(width - 1)).astype(unsigned)
            sign = (bits >> place) & unsigned.type(1)
            field = np.where((sign != 0) & (length != 0), field | ~mask, field)
            # Past the top of the register every bit is the sign.
            inside = _low_mask(np.where(start >= width, 0, width - start.astype(np.int64)), width)
            field = np.where((sign != 0) & (length != 0), field | ~inside, field)
        return field.astype(unsigned).view(dtype)

    return extract


def _low_mask(length: Array, width: int) -> Array:
    unsigned = np.dtype(f"u{width // 8}")
    full = np.array(-1, dtype=np.int64).astype(unsigned)
    length = np.asarray(length)
    return np.where(
        length >= width,
        full,
        (unsigned.type(1) << np.minimum(length, width - 1).astype(unsigned)) - unsigned.type(1),
    ).astype(unsigned)


def _insert(width: int) -> Callable[..., Array]:
    """`bfi`: put the low `length` bits of a at `start` of b."""
    unsigned = np.dtype(f"u{width // 8}")

    def insert(a: Array, b: Array, start: Array, length: Array) -> Array:
        start, length = start & np.uint32(0xFF), length & np.uint32(0xFF)
        place = np.minimum(start, width - 1).astype(unsigned)
        mask = np.where(start >= width, 0, _low_mask(length, width) << place).astype(unsigned)
        answer: Array = (b & ~mask) | ((a << place) & mask)
        return answer

    return insert


def _funnel(parts: list[str]) -> Callable[..., Array]:
    """`shf`: shift a 64-bit pair and keep one word."""
    wrap, left = "wrap" in parts, "l" in parts

    def funnel(low: Array, high: Array, distance: Array) -> Array:
        n = (distance & np.uint32(31)) if wrap else np.minimum(distance, np.uint32(32))
        pair = (np.asarray(high).astype(np.uint64) << np.uint64(32)) | low
        if left:
            return ((pair << n.astype(np.uint64)) >> np.uint64(32)).astype(np.uint32)
        return (pair >> n.astype(np.uint64)).astype(np.uint32)

    return funnel


def _permute_bytes(a: Array, b: Array, selector: Array) -> Array:
    """`prmt`: each nibble of the selector picks one of eight bytes, or copies its sign."""
    pair = (np.asarray(b).astype(np.uint64) << np.uint64(32)) | a
    result: Array | np.uint32 = np.uint32(0)
    for place in range(4):
        nibble = (selector >> np.uint32(4 * place)) & np.uint32(15)
        octet = (pair >> ((nibble & np.uint32(7)).astype(np.uint64) * np.uint64(8))) & np.uint64(0xFF)
        octet = octet.astype(np.uint32)
        sign = np.where(octet & np.uint32(0x80), np.uint32(0xFF), np.uint32(0))
        chosen = np.where(nibble & np.uint32(8), sign, octet)
        result = result | (chosen << np.uint32(8 * place))
    return np.asarray(result)


def _mask(parts: list[str]) -> Callable[..., Array]:
    """`bmsk`: `length` ones from `start`."""
    wrap = "wrap" in parts

    def mask(start: Array, length: Array) -> Array:
        start = (start & np.uint32(31)) if wrap else start
        length = (length & np.uint32(31)) if wrap else length
        ones = _low_mask(length, 32).astype(np.uint64)
        return np.where(start >= 32, 0, ones << np.minimum(start, 31).astype(np.uint64)).astype(np.uint32)

    return mask


def _extend(kind: str) -> Callable[..., Array]:
    """`szext`: zero- or sign-extend the low bits."""

    def extend(a: Array, length: Array) -> Array:
        low = a.view(np.uint32) & _low_mask(length, 32)
        if kind[0] == "s":
            place = np.minimum(np.maximum(length, 1) - 1, 31).astype(np.uint32)
            sign = (a.view(np.uint32) >> place) & np.uint32(1)
            low = np.where((sign != 0) & (length != 0), low | ~_low_mask(length, 32), low)
        return low.view(DTYPE[kind])

    return extend
