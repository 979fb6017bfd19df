"""Each hazard is what its docstring says, in every dtype and at every strength."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from strategies import hazards
from strategies.formats import FLOAT_NAMES, float_format
from strategies.hazards import discover, hazard_names
from strategies.registry import VARIABLE
from strategies.values import Values

FINITE = hazard_names(finite_only=True)
STRENGTHS = (0, 1, 3, 7, 15)


def numbers(hazard, dtype="float32", shape=(8, 65), **settings):
    """Fill a matrix, and return it in float64, which holds all formats exactly."""
    return Values(hazard=hazard, seed=5, **settings).fill(shape, dtype).double().numpy()


def kappa(matrix):
    """Mean over standard deviation of each row, from exact sums."""
    result = []
    for row in matrix.tolist():
        exact = [Fraction(value) for value in row]
        mean = sum(exact) / len(exact)
        variance = sum((value - mean) ** 2 for value in exact) / len(exact)
        result.append(math.inf if variance == 0 else math.sqrt(mean**2 / variance))
    return result


def test_the_list_begins_with_ordinary_and_has_no_doubles():
    names = hazard_names()
    assert names[0] == "ordinary"
    assert list(names[1:]) == sorted(names[1:])
    assert set(names) - set(FINITE) == {"nonfinite", "infinite_beginning"}


@pytest.mark.parametrize("name", hazard_names())
def test_every_hazard_says_what_it_aims_at(name):
    assert "Aims at:" in discover()[name].description


@pytest.fixture
def extension(tmp_path, monkeypatch):
    """Return the folder for hazards of an extension; the package's own path is as before after the test."""
    folder = tmp_path / "strategies" / "hazards"
    folder.mkdir(parents=True)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(hazards, "__path__", [*hazards.__path__])
    discover.cache_clear()
    yield folder
    discover.cache_clear()


def test_a_file_in_the_folder_is_the_registration(extension):
    (extension / "added_for_a_test.py").write_text('def sevens(draw):\n    """Sevens. Aims at: nothing."""\n')
    assert discover()["sevens"].description == "Sevens. Aims at: nothing."


def test_a_hazard_without_a_docstring_is_refused(extension):
    (extension / "undocumented_for_a_test.py").write_text("def eights(draw):\n    return 8\n")
    with pytest.raises(TypeError, match=r"'eights' .* needs a docstring"):
        discover()


@pytest.mark.parametrize("dtype", FLOAT_NAMES)
@pytest.mark.parametrize("name", FINITE)
def test_finite_hazards_are_finite_at_every_strength_and_scale(name, dtype):
    for strength in STRENGTHS:
        for scale in (0, 30, -30):
            filled = Values(hazard=name, strength=strength, scale=scale, row_scale=-scale).fill((9, 7), dtype)
            assert torch.isfinite(filled).all()


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (1, 1), (3, 1), (1, 2), ()])
@pytest.mark.parametrize("name", hazard_names())
def test_every_hazard_fills_the_smallest_shapes(name, shape):
    for distinct in (None, 2):
        assert Values(hazard=name, strength=3, distinct=distinct).fill(shape, "bfloat16").shape == shape


@pytest.mark.parametrize("name", FINITE)
def test_two_seeds_differ_unless_there_is_nothing_to_choose(name):
    first, second = (Values(hazard=name, strength=1, seed=seed).fill((6, 40), "float32") for seed in (1, 2))
    assert not torch.equal(first.view(torch.int32), second.view(torch.int32))


@pytest.mark.parametrize("strength", range(8))
def test_cancellation_has_the_kappa_that_it_names(strength):
    # 65 numbers of variance 1 have a sample standard deviation between 1/2 and 2, with 10^-14 against it,
    # and rounding the numbers to float32 adds at most 10^7 2^-24 = 0.6 to them.
    for ratio in kappa(numbers("cancellation", strength=strength)):
        assert 10**strength / 4 <= ratio + 1 <= 10**strength * 4


def test_cancellation_stops_at_the_digits_of_the_dtype():
    assert np.abs(numbers("cancellation", "float16", strength=15)).max() < 1010
    assert np.abs(numbers("cancellation", "bfloat16", strength=15)).max() < 110
    assert min(kappa(numbers("cancellation", "float64", strength=15))) > 1e14


@pytest.mark.parametrize("dtype", FLOAT_NAMES)
def test_near_constant_rows_vary_by_units_in_the_last_place(dtype):
    matrix = numbers("near_constant_row", dtype, strength=1)
    last_place = 2.0 ** (1 - float_format(dtype).precision)
    spread = (matrix.max(axis=1) - matrix.min(axis=1)) / last_place
    assert spread.tolist() == [4.0] * 8
    assert len({row[0] for row in matrix.tolist()}) > 1


def test_constant_rows_are_constant_but_differ_among_each_other():
    matrix = numbers("constant_row", strength=2)
    assert (matrix == matrix[:, :1]).all()
    assert len(set(matrix[:, 0].tolist())) == 8
    assert (matrix >= 124).all()
    assert (matrix <= 176).all()


@pytest.mark.parametrize("dtype", FLOAT_NAMES)
@pytest.mark.parametrize("columns", [1, 2, 7, 64])
def test_alternating_signs_cancel_exactly(dtype, columns):
    matrix = numbers("alternating_signs", dtype, shape=(3, columns), strength=9)
    assert [sum(map(Fraction, row)) for row in matrix.tolist()] == [0, 0, 0]
    assert columns == 1 or (np.abs(matrix) >= 1).any(axis=1).all()


def test_one_outlier_stands_once_in_each_row_and_not_always_at_one_place():
    matrix = numbers("one_outlier", strength=3)
    assert ((matrix == 1e4).sum(axis=1) == 1).all()
    assert ((np.abs(matrix) <= 6).sum(axis=1) == 64).all()
    assert len(set(matrix.argmax(axis=1).tolist())) > 1


def test_a_single_number_is_not_zero():
    matrix = numbers("single_nonzero", strength=3)
    assert ((matrix == 8).sum(axis=1) == 1).all()
    assert ((matrix == 0).sum(axis=1) == 64).all()


def test_sorted_rows_increase():
    matrix = numbers("sorted_row")
    assert (np.diff(matrix, axis=1) >= 0).all()
    assert (matrix[:, 0] < matrix[:, -1]).all()


def test_drift_climbs_to_its_power_of_ten():
    matrix = numbers("drift", strength=4)
    assert (np.abs(matrix[:, 0]) <= 6).all()
    assert (np.abs(matrix[:, -1] - 1e4) <= 6.001).all()


@pytest.mark.parametrize("dtype", FLOAT_NAMES)
def test_wide_exponents_use_all_of_the_range_at_full_strength(dtype):
    target = float_format(dtype)
    magnitudes = np.abs(numbers("wide_exponents", dtype, shape=(40, 400), strength=7))
    assert (magnitudes > 0).all()
    assert magnitudes.max() >= 2.0**target.maximum_exponent
    assert magnitudes.min() < 2.0**target.minimum_exponent


def test_wide_exponents_use_an_eighth_of_the_range_at_strength_0():
    magnitudes = np.abs(numbers("wide_exponents"))
    assert magnitudes.min() >= 2.0**-19
    assert magnitudes.max() < 2.0**16


@pytest.mark.parametrize("dtype", FLOAT_NAMES)
def test_squares_overflow_for_some_numbers_and_not_for_all(dtype):
    matrix = numbers("overflow_of_squares", dtype)
    too_large = [
        Fraction(value) ** 2 > Fraction(float_format(dtype).maximum) for value in matrix.ravel().tolist()
    ]
    assert 0 < sum(too_large) < len(too_large)


@pytest.mark.parametrize("dtype", FLOAT_NAMES)
def test_squares_underflow_for_some_numbers_and_not_for_all(dtype):
    matrix = numbers("underflow_of_squares", dtype)
    smallest = Fraction(2) ** float_format(dtype).minimum_exponent
    too_small = [Fraction(value) ** 2 < smallest for value in matrix.ravel().tolist()]
    assert 0 < sum(too_small) < len(too_small)


@pytest.mark.parametrize("dtype", FLOAT_NAMES)
def test_subnormal_numbers_are_subnormal(dtype):
    target = float_format(dtype)
    for strength in STRENGTHS:
        matrix = np.abs(numbers("subnormal", dtype, strength=strength))
        assert (matrix < 2.0**target.minimum_exponent).all()
        assert (matrix > 0).any()
    assert matrix.max() > 2.0 ** (target.minimum_exponent - 1)


@pytest.mark.parametrize("dtype", FLOAT_NAMES)
def test_max_magnitude_is_the_largest_number_with_both_kinds_of_rows(dtype):
    matrix = numbers("max_magnitude", dtype)
    assert (np.abs(matrix) == float_format(dtype).maximum).all()
    one_sign = (matrix == matrix[:, :1]).all(axis=1)
    assert one_sign.any()
    assert not one_sign.all()


@pytest.mark.parametrize(
    ("dtype", "strength", "kept"),
    [
        ("float32", 0, 11),
        ("float32", 1, 8),
        ("float64", 0, 11),
        ("float16", 0, 8),
        ("float16", 1, 8),
        ("bfloat16", 0, 7),
    ],
)
def test_ties_lie_halfway_between_two_narrower_numbers(dtype, strength, kept):
    halves = np.abs(numbers("ties", dtype, strength=strength)) * 2.0**kept
    assert (halves % 2 == 1).all()
    assert len(set(halves.ravel().tolist())) > 10


def test_eps_scale_has_a_variance_of_the_order_of_epsilon():
    for strength in (0, 1, 7):
        ratio = numbers("eps_scale", strength=strength).var() / 10.0 ** (-5 - strength)
        # 520 numbers: the sample variance is within half of 1 by eight standard errors
        assert 0.5 < ratio < 1.5


def test_plain_hazards_hold_the_numbers_that_they_name():
    assert set(numbers("small_integers", strength=2).ravel().tolist()) == {-3, -2, -1, 0, 1, 2, 3}
    assert set(numbers("powers_of_two").ravel().tolist()) == {s * m for s in (1, -1) for m in (0.5, 1, 2)}
    assert set(numbers("two_level", strength=4).ravel().tolist()) == {1, 32}
    assert (numbers("lognormal") > 0).all()
    assert numbers("lognormal", strength=3).max() > 100


def test_zeros_are_positive_and_with_strength_of_both_signs():
    assert not np.signbit(numbers("zeros")).any()
    signed = numbers("zeros", strength=1)
    assert (signed == 0).all()
    assert 0 < np.signbit(signed).sum() < signed.size


@pytest.mark.parametrize(
    ("strength", "expected"),
    [(0, {"nan"}), (1, {"inf"}), (2, {"-inf"}), (3, {"inf", "-inf"}), (4, {"nan", "inf"})],
)
def test_nonfinite_numbers_stand_in_every_other_row(strength, expected):
    matrix = numbers("nonfinite", strength=strength, shape=(40, 65))
    assert np.isfinite(matrix[1::2]).all()
    special = ~np.isfinite(matrix[0::2])
    assert special.any(axis=1).all()
    assert special.sum(axis=1).max() == 2
    assert {str(value) for value in matrix[0::2][special].tolist()} == expected


def test_rows_that_begin_with_infinities_end_with_numbers_and_no_two_begin_alike():
    matrix = numbers("infinite_beginning", shape=(40, 65))
    long, plain, drawn, whole, poisoned = (matrix[kind::5] for kind in range(5))
    assert np.isfinite(plain).all()
    assert np.isneginf(whole).all()
    assert (np.isnan(poisoned).sum(axis=1) == 1).all()
    assert not np.isinf(poisoned).any()
    for rows, ends in ((long, {64}), (drawn, None)):
        beginnings = np.isneginf(rows)
        lengths = beginnings.sum(axis=1)
        assert (beginnings == (np.arange(65) < lengths[:, np.newaxis])).all()
        assert lengths.min() >= 32
        assert {*lengths.tolist()} == ends if ends else len({*lengths.tolist()}) > 3


@pytest.mark.parametrize(("strength", "expected"), [(5, "nan"), (6, "inf"), (7, "-inf")])
def test_nonfinite_rows_are_whole(strength, expected):
    matrix = numbers("nonfinite", strength=strength)
    assert {str(value) for value in matrix[0::2].ravel().tolist()} == {expected}
    assert np.isfinite(matrix[1::2]).all()


@pytest.mark.parametrize(
    ("dtype", "bits"), [("float16", 0x7E00), ("bfloat16", 0x7FC0), ("float32", 0x7FC00000)]
)
@pytest.mark.parametrize("negative", [False, True])
def test_nan_has_one_pattern_whatever_was_done_to_it(dtype, bits, negative):
    filled = Values(hazard="nonfinite", strength=5, negative=negative).fill((1, 9), dtype)
    pattern = torch.int32 if dtype == "float32" else torch.int16
    assert filled.view(pattern).tolist() == [[bits] * 9]
