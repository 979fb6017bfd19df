"""Every double-double operation keeps the relative error that it states."""

from fractions import Fraction

import numpy as np
import pytest

from verifier.arithmetic.error_free import double_double

UNIT2 = Fraction(2) ** -106


def pairs(seed, size=400):
    """Return normalized pairs: random, with exponents near each other and with low parts of every size."""
    random = np.random.default_rng(seed)
    high = random.normal(size=size) * 2.0 ** random.integers(-30, 31, size=size)
    low = high * 2.0**-53 * random.uniform(-1, 1, size=size) * 2.0 ** random.integers(-60, 1, size=size)
    low[::5] = 0.0
    return double_double.two_sum(high, low)


def exact(pair):
    return [Fraction(a) + Fraction(b) for a, b in zip(pair[0].tolist(), pair[1].tolist(), strict=True)]


def single(numbers):
    return [Fraction(a) for a in numbers.tolist()]


def worst(found, true):
    """Return the largest relative error in units of u**2; exact zeros must be met exactly."""
    errors = []
    for a, b in zip(exact(found), true, strict=True):
        assert b != 0 or a == 0
        errors.append(abs(a - b) / abs(b) / UNIT2 if b else Fraction(0))
    return max(errors)


def near(pair, seed):
    """Return pairs that cancel most of `pair`."""
    random = np.random.default_rng(seed)
    close = -pair[0] * (1.0 + random.integers(-3, 4, size=pair[0].size) * 2.0**-52)
    return double_double.two_sum(close, pair[1] * random.uniform(-2, 2, size=pair[0].size))


@pytest.mark.parametrize("seed", range(4))
def test_sums(seed):
    a, b = pairs(seed), pairs(seed + 100)
    for other in (b, near(a, seed)):
        true = [p + q for p, q in zip(exact(a), exact(other), strict=True)]
        assert worst(double_double.add(a, other), true) <= double_double.SUM_ERROR
        true = [p + q for p, q in zip(exact(a), single(other[0]), strict=True)]
        assert worst(double_double.shift(a, other[0]), true) <= double_double.SHIFTED_ERROR


@pytest.mark.parametrize("seed", range(4))
def test_products(seed):
    a, b = pairs(seed), pairs(seed + 100)
    true = [p * q for p, q in zip(exact(a), exact(b), strict=True)]
    assert worst(double_double.multiply(a, b), true) <= double_double.PRODUCT_ERROR
    assert worst(double_double.multiply(a, b, double_double.split(a[0])), true) <= double_double.PRODUCT_ERROR
    true = [p * q for p, q in zip(exact(a), single(b[0]), strict=True)]
    assert worst(double_double.scale(a, b[0]), true) <= double_double.SCALED_ERROR
    short = b[0].astype(np.float32).astype(np.float64)
    true = [p * q for p, q in zip(exact(a), single(short), strict=True)]
    assert worst(double_double.scale(a, short, narrow=True), true) <= double_double.SCALED_ERROR


def long_pairs(seed, size=2000):
    """Return pairs a little above 1 with low parts as large as they can be, where roundings weigh most."""
    random = np.random.default_rng(seed)
    high = 1.0 + random.integers(0, 2**36, size=size) * 2.0**-52
    low = 2.0**-53 * random.uniform(0.98, 1.0, size=size) * random.choice([-1.0, 1.0], size=size)
    return double_double.two_sum(high, low)


def test_products_of_long_pairs_come_near_their_bounds():
    a, b = long_pairs(1), long_pairs(51)
    true = [p * q for p, q in zip(exact(a), exact(b), strict=True)]
    assert 3.5 < worst(double_double.multiply(a, b), true) <= double_double.PRODUCT_ERROR
    true = [p * q for p, q in zip(exact(a), single(b[0]), strict=True)]
    assert 1.4 < worst(double_double.scale(a, b[0]), true) <= double_double.SCALED_ERROR


@pytest.mark.parametrize("seed", range(4))
def test_error_free_transformations(seed):
    a, b = pairs(seed)[0], pairs(seed + 100)[0]
    assert exact(double_double.two_sum(a, b)) == [p + q for p, q in zip(single(a), single(b), strict=True)]
    assert exact(double_double.two_product(a, b)) == [
        p * q for p, q in zip(single(a), single(b), strict=True)
    ]
    assert exact(double_double.split(a)) == single(a)
    short = b.astype(np.float32).astype(np.float64)
    product = double_double.two_product(a, short, narrow=True)
    assert exact(product) == [p * q for p, q in zip(single(a), single(short), strict=True)]


def test_the_bounds_say_something():
    a, b = pairs(0, 4000), pairs(1, 4000)
    true = [p * q for p, q in zip(exact(a), exact(b), strict=True)]
    assert worst(double_double.multiply(a, b), true) > 1
    assert worst((a[0] * b[0], 0.0 * a[0]), true) > double_double.PRODUCT_ERROR
