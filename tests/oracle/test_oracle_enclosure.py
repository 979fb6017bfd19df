"""An enclosure's answers hold for every exact value that it contains."""

from fractions import Fraction

import numpy as np
import pytest

from verifier.arithmetic import blocks
from verifier.arithmetic.formats import FORMATS
from verifier.oracle.enclosure import Enclosure, undefined


def enclosure(high, low=0.0, radius=0.0):
    high = np.atleast_1d(np.asarray(high, dtype=np.float64))
    return Enclosure(
        high=high, low=np.broadcast_to(low, high.shape), radius=np.broadcast_to(radius, high.shape)
    )


def random_enclosures(seed, size=300):
    random = np.random.default_rng(seed)
    high = random.normal(size=size) * 2.0 ** random.integers(-40, 40, size=size)
    low = high * 2.0**-54 * random.uniform(-1, 1, size=size)
    radius = np.abs(high) * 2.0 ** random.integers(-130, -30, size=size).astype(float)
    return random, enclosure(high, low, radius)


@pytest.mark.parametrize("seed", range(3))
def test_error_bounds_bracket_the_error_of_every_contained_value(seed):
    random, exact = random_enclosures(seed)
    actual = exact.high * (1 + random.integers(-2, 3, size=exact.high.size) * 2.0**-52)
    lower, upper = exact.error_of(actual)
    for k in range(actual.size):
        centre = Fraction(exact.high[k]) + Fraction(exact.low[k])
        for place in (-1, 0, 1):
            error = abs(Fraction(actual[k]) - centre - place * Fraction(exact.radius[k]))
            assert Fraction(lower[k]) <= error <= Fraction(upper[k])
        assert Fraction(exact.magnitude()[k]) >= abs(centre) + Fraction(exact.radius[k])


def test_errors_by_blocks_have_the_bits_of_those_of_the_whole(monkeypatch):
    random, exact = random_enclosures(7, size=13 * 17)
    actual = exact.high * (1 + random.integers(-2, 3, size=exact.high.size) * 2.0**-52)
    actual[::29], exact.high[::31] = np.nan, np.inf
    exact = exact.reshape(13, 17)
    whole = exact.error_of(actual.reshape(13, 17))
    seen = []
    original = Enclosure._error_of
    monkeypatch.setattr(blocks, "MOST", 16)
    monkeypatch.setattr(Enclosure, "_error_of", lambda *given: seen.append(given) or original(*given))
    for expected, found in zip(whole, exact.error_of(actual.reshape(13, 17)), strict=True):
        np.testing.assert_array_equal(expected, found)
    assert len(seen) > 10


def test_error_bounds_hold_without_a_radius():
    random, exact = random_enclosures(9, 2000)
    exact = enclosure(exact.high, exact.low)
    actual = exact.high * random.uniform(0.9, 1.1, size=exact.high.size)
    lower, upper = exact.error_of(actual)
    for k in range(actual.size):
        error = abs(Fraction(actual[k]) - Fraction(exact.high[k]) - Fraction(exact.low[k]))
        assert Fraction(lower[k]) <= error <= Fraction(upper[k])


def test_error_bounds_are_sharp_without_a_radius():
    lower, upper = enclosure(1.0, 2.0**-60).error_of(np.array([1.0 + 2.0**-52]))
    true = 2.0**-52 - 2.0**-60
    assert true * (1 - 2.0**-48) < lower[0] <= true <= upper[0] < true * (1 + 2.0**-48)


def test_nan_and_infinity_in_the_place_of_a_number_are_infinitely_wrong():
    lower, upper = enclosure([1.0, 1.0, 1.0]).error_of(np.array([np.nan, np.inf, -np.inf]))
    assert np.isinf(lower).all()
    assert np.isinf(upper).all()


def test_where_nothing_is_known_no_error_is_claimed():
    lower, upper = enclosure([1.0, 1.0], 0.0, np.inf).error_of(np.array([5.0, np.nan]))
    assert lower.tolist() == [0.0, 0.0]
    assert np.isinf(upper).all()
    lower, upper = undefined((1,)).error_of(np.array([5.0]))
    assert np.isnan(lower).all()
    assert np.isnan(upper).all()


def test_an_infinite_exact_value_is_met_only_by_itself():
    lower, upper = enclosure([-np.inf] * 3).error_of(np.array([-np.inf, 0.0, np.nan]))
    assert lower.tolist() == [0.0, np.inf, np.inf]
    assert upper.tolist() == [0.0, np.inf, np.inf]


def test_huge_differences_overflow_upwards():
    lower, upper = enclosure([-1.7e308]).error_of(np.array([1.7e308]))
    assert lower[0] < np.inf
    assert upper[0] == np.inf


def nearest_by_fractions(value, format):
    """Return the nearest number of the format, ties to even, from rational arithmetic alone."""
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    step = Fraction(2) ** (max(exponent, format.minimum_exponent) - format.precision + 1)
    return float(round(value / step) * step)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("radius", [0.0, 2.0**-80])
def test_nearest_is_correctly_rounded_where_it_answers(name, radius):
    kind = FORMATS[name]
    random = np.random.default_rng(3)
    scale = 2.0 ** random.integers(kind.minimum_exponent - 13 if name == "float16" else -20, 12, size=400)
    base = random.normal(size=400) * scale
    grid = np.array([nearest_by_fractions(Fraction(a), kind) for a in base.tolist()])
    step = np.maximum(
        2.0 ** (np.frexp(grid)[1] - kind.precision),
        2.0 ** float(max(kind.minimum_exponent, -900) - kind.precision + 1),
    )
    ties = grid + step / 2 if name != "float64" else grid
    low = np.where(random.random(400) < 0.3, 0.0, ties * 2.0**-56 * random.uniform(-1, 1, size=400))
    exact = enclosure(ties, low, np.abs(ties) * radius)
    found = exact.nearest(kind)
    for k, answer in enumerate(found.tolist()):
        centre = Fraction(ties[k]) + Fraction(low[k])
        wanted = {nearest_by_fractions(centre + s * Fraction(exact.radius[k]), kind) for s in (-1, 0, 1)}
        assert np.isnan(answer) or wanted == {answer}
        assert radius or np.isfinite(answer) or abs(low[k]) > 0
    assert np.isfinite(found).mean() > 0.5


def test_nearest_is_open_when_a_tie_lies_inside():
    assert np.isnan(enclosure(1.0 + 2.0**-11, 0.0, 2.0**-60).nearest(FORMATS["float16"]))[0]
    assert enclosure(1.0 + 2.0**-11, 2.0**-70, 2.0**-72).nearest(FORMATS["float16"])[0] == 1.0 + 2.0**-10
    assert enclosure(1.0 + 2.0**-11, -(2.0**-70), 2.0**-72).nearest(FORMATS["float16"])[0] == 1.0


def test_misshapen_results_are_refused():
    with pytest.raises(ValueError, match="shape"):
        enclosure([1.0, 2.0]).error_of(np.zeros(3))
