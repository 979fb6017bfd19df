"""Every float instruction against rational arithmetic: equal, not close."""

# ruff: noqa: E501 - lines of PTX are kept whole

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from ptx_snippets import close_exponents, decode, execute, rounded, samples

from verifier.machine.arithmetic import numerics
from verifier.machine.arithmetic.approximation import Correct

RESULT = {"f16": "f2", "bf16": "u2", "f32": "f4", "f64": "f8"}
COUNT = 512


def expected(function, arrays, kind, mode):
    columns = [[Fraction(float(x)) for x in decode(a, kind)] for a in arrays]
    return np.array([rounded(function(*row), kind, mode) for row in zip(*columns, strict=True)])


def assert_equal(actual, wanted, arrays=()):
    wrong = np.flatnonzero(~((actual == wanted) | (np.isnan(actual) & np.isnan(wanted))))
    assert not wrong.size, (
        f"{wrong.size} differ, first {[a[wrong[0]] for a in arrays]}: {actual[wrong[0]]!r} instead of {wanted[wrong[0]]!r}"
    )


BINARY = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b}


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("name", ["add", "sub", "mul"])
def test_basic_operations_are_correctly_rounded(name, kind):
    for maker in (samples, close_exponents):
        arrays = [maker(kind, COUNT, seed) for seed in (1, 2)]
        actual = decode(execute(f"{name}.rn.{kind}", arrays, RESULT[kind]), kind)
        assert_equal(actual, expected(BINARY[name], arrays, kind, "rn"), arrays)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma", "div"])
def test_float32_in_every_rounding_mode(name, mode):
    functions = BINARY | {"fma": lambda a, b, c: a * b + c, "div": lambda a, b: a / b}
    for maker in (samples, close_exponents):
        arrays = [maker("f32", COUNT, seed) for seed in range(3 if name == "fma" else 2)]
        if name == "div":
            arrays[1][arrays[1] == 0] = 3
        actual = execute(f"{name}.{mode}.f32", arrays, "f4").astype(np.float64)
        assert_equal(actual, expected(functions[name], arrays, "f32", mode), arrays)


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
def test_fma_rounds_once(kind):
    for maker in (samples, close_exponents):
        arrays = [maker(kind, 1000, seed) for seed in range(3)]
        actual = decode(execute(f"fma.rn.{kind}", arrays, RESULT[kind]), kind)
        assert_equal(actual, expected(lambda a, b, c: a * b + c, arrays, kind, "rn"), arrays)


def test_fma_keeps_the_sign_of_a_zero_beside_subnormal_sums():
    a = np.array([0.0, -0.0, 1.0, 2.0**-70, -(2.0**-70)], dtype="f4")
    b = np.array([3.0, 3.0, 1.0, 2.0**-70, 2.0**-70], dtype="f4")
    c = np.array([0.0, -0.0, -1.0, 2.0**-149, 0.0], dtype="f4")
    found = execute("fma.rn.f32", [a, b, c], "f4")
    assert found.tolist() == [0.0, 0.0, 0.0, 2.0**-140 + 2.0**-149, -(2.0**-140)]
    assert np.signbit(found).tolist() == [False, True, False, False, True]


def test_fma_on_exact_ties_of_a_double_rounding():
    # The float64 sum lies on a float32 tie; the sign of what it lost decides.
    a = np.array([1 + 2**-23, 1 + 2**-23, 1.0, 2**-75], dtype=np.float32)
    b = np.array([1 + 2**-23, 1 + 2**-23, 2**-24, 2**-75], dtype=np.float32)
    c = np.array([2**-60, -(2**-60), 1.0, 2**-126], dtype=np.float32)
    actual = execute("fma.rn.f32", [a, b, c], "f4").astype(np.float64)
    assert_equal(actual, expected(lambda x, y, z: x * y + z, [a, b, c], "f32", "rn"))


@pytest.mark.parametrize("name", ["sqrt", "rcp"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_roots_and_reciprocals_are_correctly_rounded(name, mode):
    x = np.abs(np.concatenate([samples("f32", 300, 3), close_exponents("f32", 300, 4)]))
    x[x == 0] = 2
    actual = execute(f"{name}.{mode}.f32", [x], "f4").astype(np.float64)
    for value, result in zip(x, actual, strict=True):
        exact = Fraction(float(value))
        if name == "rcp":
            assert result == rounded(1 / exact, "f32", mode)
            continue
        below, above = (Fraction(float(np.nextafter(np.float32(result), np.float32(d)))) for d in (0, np.inf))
        here = Fraction(float(result))
        if mode == "rn":
            assert ((below + here) / 2) ** 2 <= exact <= ((here + above) / 2) ** 2
        elif mode == "rp":
            assert below**2 < exact <= here**2
        else:
            assert here**2 <= exact < above**2


@pytest.mark.parametrize(
    ("opcode", "origin", "to", "mode"),
    [
        ("cvt.rn.f16.f32", "f32", "f16", "rn"),
        ("cvt.rz.f16.f32", "f32", "f16", "rz"),
        ("cvt.rn.bf16.f32", "f32", "bf16", "rn"),
        ("cvt.rz.bf16.f32", "f32", "bf16", "rz"),
        ("cvt.rn.f32.f64", "f64", "f32", "rn"),
        ("cvt.rm.f32.f64", "f64", "f32", "rm"),
        ("cvt.rp.f32.f64", "f64", "f32", "rp"),
        ("cvt.rn.f16.f64", "f64", "f16", "rn"),
        ("cvt.f32.f16", "f16", "f32", "rn"),
        ("cvt.f32.bf16", "bf16", "f32", "rn"),
        ("cvt.f64.f32", "f32", "f64", "rn"),
    ],
)
def test_conversions_between_floats(opcode, origin, to, mode):
    for maker in (samples, close_exponents):
        x = maker(origin, 1000, 7)
        actual = decode(execute(opcode, [x], RESULT[to]), to)
        wanted = np.array([rounded(Fraction(float(v)), to, mode) for v in decode(x, origin)])
        assert_equal(actual, wanted, [x])


@pytest.mark.parametrize(
    ("mode", "function"), [("rni", np.rint), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil)]
)
@pytest.mark.parametrize("to", ["s32", "u32", "s16", "u8", "s64", "u64"])
def test_floats_to_integers_clamp_and_nan_is_zero_or_the_top_bit(mode, function, to):
    x = np.concatenate([samples("f32", 200, 1), close_exponents("f32", 200, 2) * 50])
    x = np.concatenate(
        [
            x,
            np.array(
                [np.nan, np.inf, -np.inf, 2.0**31, 2.0**63, -(2.0**63), 2.0**64, 0.5, -0.5, 1.5], dtype="f4"
            ),
        ]
    )
    size = {"s32": "i4", "u32": "u4", "s16": "i2", "u8": "u1", "s64": "i8", "u64": "u8"}[to]
    actual = execute(f"cvt.{mode}.{to}.f32", [x.astype("f4")], size if to != "u8" else "u2")
    info = np.iinfo(size)
    for value, result in zip(x.astype("f4").astype(float), actual.tolist(), strict=True):
        if np.isnan(value):
            assert result == ({"s64": info.min, "u64": 2**63}.get(to, 0))
        elif np.isinf(value):
            assert result == (info.max if value > 0 else info.min)
        else:
            assert result == min(max(int(function(value)), info.min), info.max)


@pytest.mark.parametrize(("origin", "dtype"), [("s32", "i4"), ("u32", "u4"), ("s64", "i8"), ("u64", "u8")])
def test_integers_to_floats(origin, dtype):
    info = np.iinfo(dtype)
    x = np.random.default_rng(5).integers(info.min, info.max, 500, dtype=dtype, endpoint=True)
    actual = execute(f"cvt.rn.f32.{origin}", [x], "f4").astype(np.float64)
    assert_equal(actual, np.array([rounded(Fraction(int(v)), "f32") for v in x]))


def test_packed_halves_are_two_operations():
    a, b, c = (samples("f16", 1024, s).view(np.uint32) for s in range(3))
    actual = execute("fma.rn.f16x2", [a, b, c], "u4").view("f2").astype(np.float64)
    arrays = [x.view("f2") for x in (a, b, c)]
    assert_equal(actual, expected(lambda x, y, z: x * y + z, arrays, "f16", "rn"))


def test_packed_singles_are_two_operations():
    a, b, c = (close_exponents("f32", 1024, s).view(np.uint64) for s in range(3))
    actual = execute("fma.rn.f32x2", [a, b, c], "u8").view("f4").astype(np.float64)
    assert_equal(actual, expected(lambda x, y, z: x * y + z, [x.view("f4") for x in (a, b, c)], "f32", "rn"))


def test_mixed_precision_sum_rounds_once():
    a, c = samples("bf16", 500, 1), samples("f32", 500, 2)
    actual = execute("sub.rn.f32.bf16", [a, c], "f4").astype(np.float64)
    pairs = zip(decode(a, "bf16"), decode(c, "f32"), strict=True)
    assert_equal(actual, np.array([rounded(Fraction(x) - Fraction(y), "f32") for x, y in pairs]))


def test_flush_to_zero_flushes_operands_and_results():
    tiny, small = np.float32(2.0**-130), np.float32(2.0**-126)
    a = np.array([tiny, -tiny, small, small], dtype="f4")
    b = np.array([1, 1, 0.5, -0.5], dtype="f4")
    assert execute("mul.ftz.f32", [a, b], "f4").view("u4").tolist() == [0, 0x80000000, 0, 0x80000000]
    assert execute("mul.f32", [a, b], "f4")[0] == tiny


def test_minimum_and_maximum_treat_nan_and_zeros_as_documented():
    nan = np.float32(np.nan)
    a, b = np.array([nan, 1, nan, -0.0, 0.0], dtype="f4"), np.array([2, nan, nan, 0.0, -0.0], dtype="f4")
    low = execute("min.f32", [a, b], "f4")
    assert low[0] == 2
    assert low[1] == 1
    assert np.isnan(low[2])
    assert np.signbit(low[3:]).all()
    assert not np.signbit(execute("max.f32", [a, b], "f4")[3:]).any()
    assert np.isnan(execute("max.NaN.f32", [a, b], "f4")[:3]).all()


COMPARISONS = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a < b or a > b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


@pytest.mark.parametrize("name", [*COMPARISONS, *(f"{n}u" for n in COMPARISONS), "num", "nan"])
def test_comparisons_with_nan(name):
    values = np.array([0, -0.0, 1, -1, np.nan, np.inf, -np.inf], dtype="f4")
    a, b = (x.ravel() for x in np.meshgrid(values, values))
    got = execute(f"set.{name}.u32.f32", [a, b], "u4") != 0
    for x, y, result in zip(a.astype(float), b.astype(float), got, strict=True):
        unordered = np.isnan(x) or np.isnan(y)
        if name in ("num", "nan"):
            assert result == (unordered == (name == "nan"))
        elif name in COMPARISONS:
            assert result == COMPARISONS[name](x, y)
        else:
            assert result == (unordered or COMPARISONS[name[:-1]](x, y))


@pytest.mark.parametrize(("kind", "largest"), [("e4m3x2", 448.0), ("e5m2x2", 57344.0)])
def test_eight_bit_floats_round_to_the_nearest_code(kind, largest):
    codes = np.arange(256, dtype=np.uint16)
    halves = execute(f"cvt.rn.f16x2.{kind}", [codes], "u4").view("f2")[::2].astype(np.float64)
    finite = np.unique(halves[np.isfinite(halves)])
    assert finite[-1] == largest
    x = close_exponents("f32", 500, 9) * np.float32(2) ** np.random.default_rng(1).integers(-16, 16, 500)
    x = x.astype("f4")
    packed = execute(f"cvt.rn.satfinite.{kind}.f32", [x, x], "u2")
    got = halves[packed & 0xFF]
    for value, result in zip(x.astype(float), got, strict=True):
        best = np.abs(finite - np.clip(value, -largest, largest)).min()
        assert abs(result - np.clip(value, -largest, largest)) == best


def test_conversions_between_halves_and_singles_agree_with_numpy_on_every_half_and_every_tie():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    singles = numerics.half_to_single(every.copy())
    assert (
        singles.view(np.uint32)[~np.isnan(every)]
        == every.astype(np.float32).view(np.uint32)[~np.isnan(every)]
    ).all()
    finite = singles[np.isfinite(singles)]
    middle = ((finite.astype(np.float64)[:-1] + finite.astype(np.float64)[1:]) / 2).astype(np.float32)
    near = np.concatenate([np.nextafter(middle, np.float32(s)) for s in (-np.inf, np.inf)] + [middle, finite])
    expected = near.astype(np.float16)
    assert (numerics.single_to_half(near.copy()).view(np.uint16) == expected.view(np.uint16)).all()


def test_exponentials_that_are_subnormal_are_rounded_once():
    random = np.random.default_rng(5)
    ties = np.log2(np.arange(1, 2000) + 0.5) - 149  # next to the middle between two subnormals
    x = np.concatenate([random.uniform(-151, -125.1, 2000), ties, np.arange(-151.0, -125.0)]).astype(
        np.float32
    )
    x = np.concatenate([x, np.nextafter(x, np.float32(0)), np.nextafter(x, np.float32(-200))])
    found = Correct().evaluate("ex2", x)
    with mpmath.workprec(120):
        for argument, value in zip(x.tolist(), found.tolist(), strict=True):
            units = mpmath.mpf(2) ** (mpmath.mpf(argument) + 149)
            assert value == float(mpmath.ldexp(mpmath.nint(units), -149)), argument
