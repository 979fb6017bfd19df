"""Formats, operation errors and rounded arithmetic agree with IEEE types and with exact rationals."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from verifier.arithmetic.formats import FORMATS, ieee, theta
from verifier.arithmetic.row_statistics import exact_moments, exact_statistics
from verifier.arithmetic.simulated import RoundedArithmetic, round_to
from verifier.bounds.variance.tiny_formats import tiny

HALF = (np.float16, "float16")
SINGLE = (np.float32, "float32")


@pytest.mark.parametrize("name", list(FORMATS))
def test_formats_are_those_of_torch(name):
    held, info = FORMATS[name], torch.finfo(getattr(torch, name))
    assert held.maximum == info.max
    assert held.smallest_normal == info.smallest_normal
    assert 2.0 * held.u == info.eps
    assert held.omega == max(2.0 ** (held.minimum_exponent - held.precision), 2.0**-1074)


@pytest.mark.parametrize(("dtype", "name"), [HALF, SINGLE])
def test_rounding_is_that_of_numpy(dtype, name):
    random = np.random.default_rng(5)
    values = random.normal(size=20000) * 2.0 ** random.integers(-160, 140, size=20000)
    with np.errstate(over="ignore"):
        expected = values.astype(dtype).astype(np.float64)
    assert np.array_equal(round_to(FORMATS[name], values), expected)


def by_definition(held, values):
    """Round by the exponent of each value to a multiple of its unit, or of the smallest number."""
    with np.errstate(over="ignore", invalid="ignore"):
        _, exponent = np.frexp(values)
        unit = np.maximum(exponent - held.precision, held.subnormal_exponent)
        rounded = np.ldexp(np.rint(np.ldexp(values, -unit)), unit)
        rounded = np.where(np.isfinite(values), rounded, values)
        return np.where(np.abs(rounded) > held.maximum, np.copysign(np.inf, values), rounded)


def hard_to_round(held):
    """Yield random bits, numbers around the smallest and the largest, ties, and what is no number."""
    random, count = np.random.default_rng(8), 50_000
    yield random.integers(0, 2**64, size=count, dtype=np.uint64).view(np.float64)
    yield np.ldexp(random.normal(size=count), random.integers(-30, 8, count) + held.minimum_exponent)
    yield random.normal(size=count) * held.maximum
    units = random.integers(-3, 40, count) + held.subnormal_exponent
    yield np.ldexp(random.integers(-4096, 4096, count).astype(np.float64), units)
    middle = held.maximum * (1.0 + held.u / 2)
    # Beside ties by less than another format in between would keep: rounded twice, half of these go wrong.
    least, most = 2 ** (held.precision - 1), 2**held.precision
    ties = np.ldexp(
        random.integers(least, most, count) + 0.5, random.integers(-20, 2, count) - held.precision
    )
    yield np.concatenate([ties * (1.0 - 2.0**-45), ties * (1.0 + 2.0**-45), np.nextafter(ties, np.inf)])
    edges = [0.0, 5e-324, held.omega, held.smallest_normal, held.maximum, middle, np.inf, np.nan]
    near = np.concatenate([np.nextafter(edges, -np.inf), edges, np.nextafter(edges, np.inf)])
    yield np.concatenate([near, -near])
    yield np.array([0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 0x7FF0000000000001], np.uint64).view(np.float64)
    yield np.zeros((0, 3))
    yield np.array(1 / 3)
    yield np.array(held.omega * 3)


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize(
    "held", [*map(FORMATS.get, ("float16", "bfloat16", "float32")), tiny(4, -12), tiny(6, -9)], ids=str
)
def test_rounding_is_as_defined(held, flush):
    for values in hard_to_round(held):
        expected, given = by_definition(held, values), values.copy()
        if flush:
            expected = np.where(np.abs(expected) < held.smallest_normal, np.copysign(0.0, values), expected)
        found = round_to(held, values, flush_to_zero=flush)
        assert values.tobytes() == given.tobytes()
        assert np.array_equal(np.isnan(found), np.isnan(expected))
        known = ~np.isnan(expected)
        assert found[known].tobytes() == expected[known].tobytes()


def test_rounding_is_that_of_torch_for_bfloat16():
    random = np.random.default_rng(6)
    values = np.float32(random.normal(size=20000) * 2.0 ** random.integers(-120, 120, size=20000))
    expected = torch.from_numpy(values).to(torch.bfloat16).to(torch.float64).numpy()
    assert np.array_equal(round_to(FORMATS["bfloat16"], values.astype(np.float64)), expected)


@pytest.mark.parametrize(("dtype", "name"), [HALF, SINGLE])
@pytest.mark.parametrize("operation", ["add", "subtract", "multiply", "divide"])
def test_operations_are_those_of_numpy(dtype, name, operation):
    random = np.random.default_rng(7)
    a, b = (random.normal(size=(2, 20000)) * 2.0 ** random.integers(-8, 8, size=(2, 20000))).astype(dtype)
    with np.errstate(all="ignore"):
        expected = getattr(np, operation)(a, b).astype(np.float64)
    found = getattr(RoundedArithmetic(format=FORMATS[name]), operation)(
        a.astype(np.float64), b.astype(np.float64)
    )
    assert np.array_equal(found, expected)


def nearest(held, value):
    """Return the number of `held` nearest a positive or negative rational, ties to even."""
    if value == 0:
        return 0.0
    exponent = math.floor(math.log2(abs(value)))
    exponent += (abs(value) >= Fraction(2) ** (exponent + 1)) - (abs(value) < Fraction(2) ** exponent)
    unit = Fraction(2) ** (max(exponent, held.minimum_exponent) - held.precision + 1)
    return float(round(value / unit) * unit)


def test_fused_multiply_add_rounds_once():
    held = FORMATS["float32"]
    rounded, random = RoundedArithmetic(format=held), np.random.default_rng(8)
    a, b = round_to(held, random.normal(size=(2, 4000)))
    near = -round_to(held, a * b) * (1 + 2.0**-20 * random.integers(-1, 2, size=4000))
    far = random.normal(size=4000) * 2.0 ** random.integers(-60, 60, size=4000)
    for c in (round_to(held, near), round_to(held, far)):
        found = rounded.multiply_add(a, b, c)
        exact = [Fraction(x) * Fraction(y) + Fraction(z) for x, y, z in zip(a, b, c, strict=True)]
        assert found.tolist() == [nearest(held, value) for value in exact]


def test_rounding_twice_is_another_result():
    """The case that makes round-to-odd necessary: a tie in fp32 that the low product bits break."""
    held = FORMATS["float32"]
    a = np.array([1.0 + 2.0**-23])
    c = np.array([2.0**-24 * (1 + 2.0**-23)])
    rounded = RoundedArithmetic(format=held)
    b, big = np.array([2.0**-40]), np.array([1.0 + 2.0**-23 + 2.0**-24])
    assert nearest(held, Fraction(a[0]) * Fraction(b[0]) + Fraction(c[0])) == rounded.multiply_add(a, b, c)[0]
    tie = np.array([2.0**30 + 2.0**6])  # a tie of fp32 at 2**30, which 2**-40 decides
    tiny = rounded.multiply_add(np.array([2.0**-20]), np.array([2.0**-20]), tie)
    assert tiny[0] == 2.0**30 + 2.0**7
    assert rounded.of(tie + 2.0**-40)[0] == 2.0**30
    assert big.dtype == np.float64


def test_flush_to_zero_drops_subnormal_results_and_inputs():
    rounded = RoundedArithmetic(format=FORMATS["float32"], flush_to_zero=True)
    smallest = FORMATS["float32"].smallest_normal
    assert rounded.multiply(np.array([smallest]), np.array([0.5]))[0] == 0.0
    assert rounded.read(np.array([smallest / 2, smallest]))[0] == 0.0
    assert rounded.read(np.array([smallest / 2, smallest]))[1] == smallest


def test_theta_is_above_the_exact_power():
    for name in FORMATS:
        u = Fraction(FORMATS[name].u)
        for k in (1, 2, 7, 39):
            assert Fraction(theta(k, float(u))) >= (1 + u) ** k - 1
            assert Fraction(theta(k, float(u))) <= ((1 + u) ** k - 1) * (1 + Fraction(1, 2**30))
    assert theta(10**7, 2.0**-8) == math.inf


@pytest.mark.parametrize(
    ("count", "how", "changes", "roundings"),
    [
        (1024, "division", {}, 0.0),
        (1024, "reciprocal", {}, 0.0),
        (1000, "division", {}, 1.0),
        (1000, "reciprocal", {}, 2.0),
        (1024, "division", {"division": 5.0}, 5.0),
        (1024, "reciprocal", {"reciprocal": 3.0}, 4.0),
        (1024, "either", {}, 0.0),
        (1000, "either", {}, 2.0),
        (1000, "either", {"division": 5.0, "reciprocal": 3.0}, 5.0),
        (2**24 + 1, "division", {}, 2.0),
        (2**25 + 2, "division", {}, 2.0),
    ],
)
def test_dividing_by_the_count_costs_its_roundings(count, how, changes, roundings):
    assert ieee("float32", **changes).division_by_count(count, how) == roundings


def test_exact_statistics_enclose_the_rationals():
    random = np.random.default_rng(9)
    rows = [random.normal(size=7), np.full(7, 0.1), random.normal(size=7) * 1e-300, np.arange(7) * 2.0**-1074]
    values = np.array([*rows, [3e38, 1e-45, 0, 0, 0, 0, 1], [np.nan, *[0] * 6]])
    s = exact_statistics(values)
    assert s.finite.tolist() == [True] * 5 + [False]
    for i, row in enumerate(values[:5]):
        exact = [Fraction(x) for x in row]
        mean = sum(exact) / 7
        variance = sum((x - mean) ** 2 for x in exact) / 7
        assert exact_moments(row) == (mean, variance, sum(x * x for x in exact) / 7)
        assert s.mean[i] == float(mean)
        assert Fraction(s.variance_lower[i]) <= variance <= Fraction(s.variance_upper[i])
        assert Fraction(s.mean_absolute[i]) >= sum(map(abs, exact)) / 7
        assert Fraction(s.mean_square_lower[i]) <= sum(x * x for x in exact) / 7 <= Fraction(s.mean_square[i])
        assert Fraction(s.mean_deviation[i]) >= sum(abs(x - mean) for x in exact) / 7
        assert Fraction(s.largest_deviation[i]) >= max(abs(x - mean) for x in exact)
        assert s.largest[i] == max(map(abs, row))
        assert Fraction(s.sigma[i]) ** 2 >= variance


def test_an_approximate_division_errs_by_spacings_where_its_result_is_subnormal():
    spacing = 2.0**-149
    assert ieee("float32").omega == spacing / 2
    assert ieee("float32", division=5.0).omega == 2.5 * spacing  # two ulp, and a rounding
    assert ieee("float32", division=5.0, flush_to_zero=True).omega == 2.0**-126
