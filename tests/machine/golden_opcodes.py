"""The single instructions that are compared with a device, and their operands."""

# ruff: noqa: E501 - lists of opcodes are kept whole

from __future__ import annotations

import numpy as np

COUNT = 768
BITS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64, "f16x2": 32, "bf16x2": 32}
BITS |= {f"{kind}{width}": width for kind in "bsu" for width in (16, 32, 64)}
RESULT = {"f16": "u2", "bf16": "u2", "f32": "u4", "f64": "u8", "f16x2": "u4", "bf16x2": "u4"}
RESULT |= {f"{kind}{width}": f"u{width // 8}" for kind in "bsu" for width in (16, 32, 64)}


def _float_opcodes() -> list[str]:
    found = []
    for name in ("add", "sub", "mul"):
        found += [f"{name}.{mode}{ftz}.f32" for mode in ("rn", "rz", "rm", "rp") for ftz in ("", ".ftz")]
        found += [f"{name}.rn.f64", f"{name}.rn.sat.f32"]
        found += [f"{name}.rn.{kind}" for kind in ("f16", "f16x2", "bf16", "bf16x2")]
    found += [f"fma.{mode}{ftz}.f32" for mode in ("rn", "rz", "rm", "rp") for ftz in ("", ".ftz")]
    found += [f"fma.rn.{kind}" for kind in ("f64", "f16", "f16x2", "bf16", "bf16x2")]
    found += [f"{name}.{mode}.f32" for name in ("div", "rcp", "sqrt") for mode in ("rn", "rz", "rm", "rp")]
    found += [f"{name}.rn.f64" for name in ("div", "rcp", "sqrt")]
    found += ["div.full.f32", "div.full.ftz.f32", "div.approx.f32", "div.approx.ftz.f32"]
    found += [
        f"{name}.approx{ftz}.f32" for name in ("rcp", "sqrt", "rsqrt", "ex2", "lg2") for ftz in ("", ".ftz")
    ]
    for name in ("min", "max"):
        found += [
            f"{name}.f32",
            f"{name}.ftz.f32",
            f"{name}.NaN.f32",
            f"{name}.f64",
            f"{name}.f16",
            f"{name}.bf16",
        ]
        found += [f"{name}.NaN.f16x2", f"{name}.bf16x2"]
    found += [
        f"{name}.{kind}"
        for name in ("neg", "abs")
        for kind in ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2")
    ]
    return found


_CONVERSIONS = [
    *(f"cvt.{mode}.{to}.f32" for mode in ("rn", "rz") for to in ("f16", "bf16")),
    "cvt.f32.f16", "cvt.f32.bf16", "cvt.f64.f32", "cvt.rn.f32.f64", "cvt.rn.f16.f64", "cvt.rz.f32.f64",
    *(f"cvt.{mode}.{to}.{kind}" for mode in ("rni", "rzi", "rmi", "rpi") for to in ("s32", "u32", "s64") for kind in ("f32", "f64")),
    *(f"cvt.{mode}.{kind}.{kind}" for mode in ("rni", "rzi", "rmi", "rpi") for kind in ("f32", "f64")),
    *(f"cvt.rn.{to}.{origin}" for to in ("f32", "f64") for origin in ("s32", "u32", "s64", "u64")),
    "cvt.rn.f16.s32", "cvt.rn.f16.u32",
    "cvt.rzi.s32.f16", "cvt.s64.s32", "cvt.u64.u32", "cvt.u32.u64", "cvt.s32.s16", "cvt.u16.u32", "cvt.sat.s16.s32",
]  # fmt: skip
_INTEGERS = [
    *(f"{name}.{kind}" for name in ("add", "sub", "mul.lo", "mul.hi", "min", "max", "div", "rem") for kind in ("s32", "u32", "s64", "u64")),
    *(f"mad.lo.{kind}" for kind in ("s32", "u32", "s64")),
    *(f"{name}.b{width}" for name in ("and", "or", "xor") for width in (32, 64)),
    "not.b32", "popc.b32", "clz.b32", "brev.b32", "abs.s32", "neg.s32", "prmt.b32",
]  # fmt: skip


def _kinds(opcode: str) -> tuple[tuple[str, ...], str]:
    """Operand types, and the type of the result as unsigned integers."""
    parts = opcode.split(".")
    if parts[0] == "cvt":
        return (parts[-1],), RESULT[parts[-2]]
    single = {"rcp", "sqrt", "rsqrt", "ex2", "lg2", "neg", "abs", "not", "popc", "clz", "brev"}
    arity = 1 if parts[0] in single else 3 if parts[0] in ("fma", "mad", "prmt") else 2
    return (parts[-1],) * arity, RESULT[parts[-1]]


OPCODES = {opcode: _kinds(opcode) for opcode in (*_float_opcodes(), *_CONVERSIONS, *_INTEGERS)}


def operands(kinds: tuple[str, ...]) -> list[np.ndarray]:
    """Bit patterns: all pairs of special values first, then random bits, then values of like exponents."""
    generator = np.random.default_rng(2026)
    arrays = []
    for number, kind in enumerate(kinds):
        special = np.array(_specials(kind), dtype=np.uint64)
        crossed = [
            (index // len(special) ** (number % 2) + number // 2 * 5) % len(special)
            for index in range(COUNT // 3)
        ]
        width = BITS[kind]
        free = (
            generator.integers(0, 2**width, COUNT // 3, dtype=np.uint64, endpoint=False)
            if width < 64
            else generator.integers(0, 2**63, COUNT // 3, dtype=np.uint64) * np.uint64(2)
        )
        near = _near_one(kind, generator)
        arrays.append(np.concatenate([special[crossed], free, near]).astype(f"u{width // 8}"))
    return arrays


_LAYOUT = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}


def _specials(kind: str) -> list[int]:
    width = BITS[kind]
    if kind.endswith("x2"):
        low = _specials(kind[:-2])
        return [(a << 16) | b for a, b in zip(low, low[3:] + low[:3], strict=True)]
    if kind[0] in "bsu" and kind != "bf16":
        top = 1 << (width - 1)
        return [
            0,
            1,
            2,
            3,
            7,
            31,
            32,
            33,
            255,
            top - 1,
            top,
            top + 1,
            2 * top - 1,
            2 * top - 2,
            0x55555555 % (2 * top),
            10,
        ]
    exponent, fraction = _LAYOUT[kind]
    bias, one = (1 << (exponent - 1)) - 1, 1 << fraction
    infinity = ((1 << exponent) - 1) << fraction
    ends = [0, 1, one - 1, one, one + 1, bias << fraction, (bias << fraction) + 1, infinity - 1]
    signs = (0, 1 << (width - 1))
    return [*[x | sign for x in (*ends, infinity) for sign in signs][:-1], infinity | one >> 1]


def _near_one(kind: str, generator: np.random.Generator) -> np.ndarray:
    """Floats between 1/8 and 8 of both signs; small integers."""
    count = COUNT - 2 * (COUNT // 3)
    if kind.endswith("x2"):
        low = _near_one(kind[:-2], generator)
        return (low << np.uint64(16)) | _near_one(kind[:-2], generator)
    if kind not in _LAYOUT:
        return generator.integers(0, 100, count, dtype=np.uint64)
    exponent, fraction = _LAYOUT[kind]
    bias = (1 << (exponent - 1)) - 1
    bits = generator.integers(0, 1 << fraction, count, dtype=np.uint64)
    bits |= (generator.integers(-3, 3, count) + bias).astype(np.uint64) << np.uint64(fraction)
    return bits | (generator.integers(0, 2, count, dtype=np.uint64) << np.uint64(BITS[kind] - 1))
