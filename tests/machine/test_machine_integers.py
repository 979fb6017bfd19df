"""Integer and bit instructions against Python's integers."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_snippets import execute, run

DTYPE = {"s16": "i2", "u16": "u2", "s32": "i4", "u32": "u4", "s64": "i8", "u64": "u8"}
WIDTH = {k: int(k[1:]) for k in DTYPE}


def integers(kind, count, seed):
    info = np.iinfo(DTYPE[kind])
    generator = np.random.default_rng(seed)
    values = generator.integers(info.min, info.max, count, dtype=DTYPE[kind], endpoint=True)
    values[: count // 4] = generator.integers(-3 if info.min else 0, 4, count // 4)
    values[:3] = [info.min, info.max, 0]
    return generator.permutation(values)


def wrap(value, kind):
    width = WIDTH[kind]
    value &= (1 << width) - 1
    return value - (1 << width) if kind[0] == "s" and value >> (width - 1) else value


def toward_zero(a, b):
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


@pytest.mark.parametrize("kind", list(DTYPE))
@pytest.mark.parametrize("name", ["add", "sub", "mul.lo", "mul.hi", "min", "max", "div", "rem"])
def test_two_operands(name, kind):
    a, b = integers(kind, 500, 1), integers(kind, 500, 2)
    if name in ("div", "rem"):
        b[b == 0] = 3
    functions = {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul.lo": lambda x, y: x * y,
        "mul.hi": lambda x, y: (x * y) >> WIDTH[kind],
        "min": min,
        "max": max,
        "div": toward_zero,
        "rem": lambda x, y: x - toward_zero(x, y) * y,
    }
    got = execute(f"{name}.{kind}", [a, b], DTYPE[kind]).tolist()
    assert got == [wrap(functions[name](int(x), int(y)), kind) for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize("kind", ["s16", "u16", "s32", "u32"])
def test_wide_products(kind):
    wide = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}[kind]
    a, b, c = integers(kind, 300, 1), integers(kind, 300, 2), integers(wide, 300, 3)
    got = execute(f"mul.wide.{kind}", [a, b], DTYPE[wide]).tolist()
    assert got == [int(x) * int(y) for x, y in zip(a, b, strict=True)]
    got = execute(f"mad.wide.{kind}", [a, b, c], DTYPE[wide]).tolist()
    assert got == [wrap(int(x) * int(y) + int(z), wide) for x, y, z in zip(a, b, c, strict=True)]


@pytest.mark.parametrize("kind", list(DTYPE))
def test_shifts_clamp_their_distance(kind):
    a = integers(kind, 400, 1)
    n = np.random.default_rng(1).integers(0, 80, 400).astype(np.uint32)
    bits = f"b{WIDTH[kind]}"
    got = execute(f"shl.{bits}", [a, n], DTYPE[kind]).tolist()
    assert got == [wrap(int(x) << int(s), kind) for x, s in zip(a, n, strict=True)]
    got = execute(f"shr.{kind}", [a, n], DTYPE[kind]).tolist()
    assert got == [wrap(int(x) >> int(s), kind) for x, s in zip(a, n, strict=True)]


MIXED = """
mad.lo.u32 %r1, %t, -1640531535, 77;
setp.lt.u32 %p1, %t, 40;
setp.lt.s32 %p2, %r1, 0;
mov.u32 %r9, 1;
BRANCH
shl.b32 %r2, %r1, DISTANCE; shr.u32 %r3, %r1, DISTANCE; shr.s32 %r4, %r1, DISTANCE;
@%p2 shl.b32 %r9, %r1, DISTANCE;
cvt.s64.s32 %d1, %r1; shr.s64 %d1, %d1, DISTANCE; cvt.u32.u64 %r5, %d1;
cvt.u64.u32 %d1, %r1; shl.b64 %d1, %d1, DISTANCE; shr.u64 %d1, %d1, 32; cvt.u32.u64 %r6, %d1;
cvt.u16.u32 %h1, %r1; cvt.s32.s16 %r7, %h1; @%p2 cvt.u32.u16 %r7, %h1;
mov.u32 %r8, %r7; @%p2 mov.u32 %r8, %r2;
xor.b32 %r1, %r2, %r3; mad.lo.u32 %r1, %r1, 31, %r4; mad.lo.u32 %r1, %r1, 31, %r5;
mad.lo.u32 %r1, %r1, 31, %r6; mad.lo.u32 %r1, %r1, 31, %r8; mad.lo.u32 %r0, %r1, 31, %r9;
DONE: mad.lo.s64 %a0, %wide, 4, %base0; st.global.b32 [%a0], %r0;
"""


@pytest.mark.parametrize("branch", ["", "@!%p1 bra DONE;"])
@pytest.mark.parametrize("distance", [0, 1, 31, 32, 45, 70])
def test_shifts_by_a_number_and_conversions_of_some_threads(distance, branch):
    registers = ".reg .b32 %r<20>; .reg .pred %p<9>; .reg .b64 %d<9>; .reg .b16 %h<9>;"
    body = MIXED.replace("DISTANCE", str(distance)).replace("BRANCH", f"mov.u32 %r0, 0; {branch}")
    got = run(body, registers=registers).numpy().view(np.uint32).tolist()
    for thread in range(64):
        x = (thread * -1640531535 + 77) % 2**32
        signed = wrap(x, "s32")
        left, half = (x << distance) % 2**32, x % 2**16
        wide = (x << distance) % 2**64 >> 32
        kept = left if signed < 0 else wrap(half, "s16")
        found = left ^ (x >> distance)
        for one in (signed >> distance, signed >> distance, wide, kept, left if signed < 0 else 1):
            found = (found * 31 + one) % 2**32
        assert got[thread] == (0 if branch and thread >= 40 else found)


def test_logic_and_counts():
    a, b, c = (integers("u32", 300, s) for s in range(3))
    assert (execute("and.b32", [a, b], "u4") == (a & b)).all()
    assert (execute("or.b32", [a, b], "u4") == (a | b)).all()
    assert (execute("xor.b32", [a, b], "u4") == (a ^ b)).all()
    assert (execute("not.b32", [a], "u4") == ~a).all()
    assert execute("popc.b32", [a], "u4").tolist() == [int(x).bit_count() for x in a]
    assert execute("clz.b32", [a], "u4").tolist() == [32 - int(x).bit_length() for x in a]
    assert execute("brev.b32", [a], "u4").tolist() == [int(f"{int(x):032b}"[::-1], 2) for x in a]
    assert execute("bfind.u32", [a], "u4").tolist() == [(int(x).bit_length() - 1) % 2**32 for x in a]
    del c


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bit_fields(kind):
    a, b = integers(kind, 400, 1), integers(kind, 400, 2)
    generator, width = np.random.default_rng(3), WIDTH[kind]
    start = generator.integers(0, width + 4, 400).astype(np.uint32)
    length = generator.integers(0, width + 4, 400).astype(np.uint32)

    def extract(x, s, n):
        bits = [int(x) % 2**width >> p & 1 for p in range(width)]
        last = min(s + n - 1, width - 1)
        sign = bits[last] if kind[0] == "s" and n else 0
        return sum((bits[s + p] if p < n and s + p < width else sign) << p for p in range(width))

    def insert(x, y, s, n):
        result = int(y) % 2**width
        for p in range(min(n, max(width - s, 0))):
            result = result & ~(1 << (s + p)) | ((int(x) >> p & 1) << (s + p))
        return result

    got = execute(f"bfe.{kind}", [a, start, length], f"u{width // 8}").tolist()
    assert got == [extract(x, int(s), int(n)) for x, s, n in zip(a, start, length, strict=True)]
    if kind[0] == "u":
        got = execute(f"bfi.b{width}", [a, b, start, length], f"u{width // 8}").tolist()
        assert got == [insert(x, y, int(s), int(n)) for x, y, s, n in zip(a, b, start, length, strict=True)]


def test_byte_permutation_and_funnel_shifts():
    a, b, n = (integers("u32", 400, s) for s in range(3))

    def permute(x, y, selector):
        octets = (int(y) << 32 | int(x)).to_bytes(8, "little")
        result = 0
        for place in range(4):
            nibble = int(selector) >> 4 * place & 15
            octet = octets[nibble & 7]
            result |= (0xFF * (octet >> 7) if nibble & 8 else octet) << 8 * place
        return result

    assert execute("prmt.b32", [a, b, n], "u4").tolist() == [
        permute(*row) for row in zip(a, b, n, strict=True)
    ]
    pairs = [(int(y) << 32 | int(x), int(s)) for x, y, s in zip(a, b, n, strict=True)]
    wrapped = execute("shf.l.wrap.b32", [a, b, n], "u4").tolist()
    assert wrapped == [p << (s & 31) >> 32 & 0xFFFFFFFF for p, s in pairs]
    clamped = execute("shf.r.clamp.b32", [a, b, n], "u4").tolist()
    assert clamped == [p >> min(s, 32) & 0xFFFFFFFF for p, s in pairs]


@pytest.mark.parametrize(
    ("to", "origin"), [("s64", "s32"), ("u64", "u32"), ("u16", "u32"), ("s32", "s16"), ("u32", "u64")]
)
def test_integer_conversions(to, origin):
    a = integers(origin, 200, 4)
    assert execute(f"cvt.{to}.{origin}", [a], DTYPE[to]).tolist() == [wrap(int(x), to) for x in a]
