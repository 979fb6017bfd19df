"""The random fields under the value recipes: the same bits everywhere, rows that stand alone."""

import mpmath
import numpy as np
import pytest
from hypothesis import find, given
from hypothesis import strategies as st

from strategies.draws import Draw, exp2, power_of_ten
from strategies.formats import FLOAT_NAMES, float_format


def a_draw(**changes):
    return Draw(**{"rows": 4, "columns": 5, "format": float_format("float32"), "seed": 3} | changes)


GOLDEN_NORMAL = ["0x1.e859f6d8a5ebfp-1", "-0x1.d5265b5176efdp+0", "0x1.04861fa5e0605p-1"]
GOLDEN_INTEGERS = [368, 954, 205]
GOLDEN_EXP2 = ["0x1.efde1ffe883d5p+0", "0x1.1f7e3b2db3d7ep-2", "0x1.6c43459892461p+0"]

FIELDS = {
    "integers": lambda draw: draw.integers(-3, 9),
    "row_integers": lambda draw: draw.row_integers(-3, 9),
    "signs": lambda draw: draw.signs(),
    "significands": lambda draw: draw.significands(),
    "normal": lambda draw: draw.normal(),
}


@pytest.mark.parametrize("field", FIELDS)
@given(rows=st.integers(0, 6), columns=st.integers(0, 6), seed=st.integers(0, 2**16))
def test_a_row_does_not_depend_on_the_number_of_rows(field, rows, columns, seed):
    few = FIELDS[field](a_draw(rows=rows, columns=columns, seed=seed))
    many = FIELDS[field](a_draw(rows=rows + 3, columns=columns, seed=seed))
    assert few.tobytes() == many[:rows].tobytes()


def test_a_row_keeps_its_bits_across_the_blocks_in_which_it_is_drawn():
    few = a_draw(rows=1, columns=70000).normal()
    assert few.tobytes() == a_draw(rows=3, columns=70000).normal()[:1].tobytes()


def test_streams_and_seeds_differ():
    draw = a_draw()
    assert draw.normal().tobytes() != draw.normal(stream=9).tobytes()
    assert draw.normal().tobytes() != a_draw(seed=4).normal().tobytes()
    single = a_draw(rows=3, columns=1)
    assert single.row_integers(0, 2**30).tolist() != single.integers(0, 2**30).tolist()


def test_the_bits_are_those_that_this_test_has_written_down():
    # PCG64's raw stream is frozen by NumPy's compatibility policy, and every operation on it is exact or
    # correctly rounded: another platform or version that prints other bits breaks every stored recipe.
    draw = a_draw(rows=1, columns=3, seed=0)
    assert [value.hex() for value in draw.normal()[0]] == GOLDEN_NORMAL
    assert draw.integers(0, 999)[0].tolist() == GOLDEN_INTEGERS
    assert [value.hex() for value in exp2(draw.normal())[0]] == GOLDEN_EXP2


def test_integers_reach_both_ends_and_nothing_beyond():
    drawn = a_draw(columns=1000).integers(-2, 3)
    assert set(drawn.ravel().tolist()) == {-2, -1, 0, 1, 2, 3}


def test_normal_numbers_have_mean_0_and_variance_1_within_five_standard_errors():
    count = 200_000
    numbers = a_draw(rows=1, columns=count).normal()
    # variance of the sample variance: (kurtosis - 1) / n, Irwin-Hall of 12 having kurtosis 2.9
    assert abs(numbers.mean()) < 5 * (1 / count) ** 0.5
    assert abs(numbers.var() - 1) < 5 * (1.9 / count) ** 0.5
    assert np.abs(numbers).max() <= 6


def test_normal_numbers_fill_the_significand_of_float64():
    numbers = a_draw(rows=1, columns=1000).normal()
    assert (numbers != numbers.astype(np.float32)).all()
    steps = np.ldexp(np.abs(numbers), 50)
    assert (steps != np.rint(steps)).any()


@pytest.mark.parametrize(
    ("distinct", "expected"), [(1, {-1}), (2, {-1, 1}), (3, {-1, 0, 1}), (5, {-1, -0.5, 0, 0.5, 1})]
)
def test_few_distinct_numbers_are_equally_spaced(distinct, expected):
    assert set(a_draw(columns=100, distinct=distinct).normal().ravel().tolist()) == expected


@pytest.mark.parametrize("name", FLOAT_NAMES)
def test_significands_fill_the_format_and_stay_below_2(name):
    drawn = a_draw(columns=1000, format=float_format(name)).significands()
    last_place = 2.0 ** (1 - float_format(name).precision)
    assert (drawn >= 1).all()
    assert (drawn < 2).all()
    assert (drawn / last_place == np.rint(drawn / last_place)).all()
    assert (drawn / last_place % 2 == 1).any()


@given(st.floats(-1000, 1000))
def test_exp2_is_within_four_unit_roundoffs(value):
    # Horner's last addition has error u and takes over 0.42 (e + 2u) <= 1.6u from the step before, which has
    # e <= 1.7u (0.42 >= |1 - exp(-f)| for |f| <= log(2)/2). Two roundings of f weigh 2u |f| <= 0.7u.
    # The cut series adds 2^-60.
    with mpmath.workprec(200):
        exact = mpmath.mpf(2) ** mpmath.mpf(value)
        error = abs(mpmath.mpf(exp2(np.array([value])).item()) - exact)
        assert error <= 4 * mpmath.mpf(2) ** -53 * exact


def test_powers_of_ten_are_the_literals_that_python_reads():
    assert [power_of_ten(k) for k in (-5, 0, 7, 15)] == [1e-5, 1.0, 1e7, 1e15]


def test_a_rare_draw_is_found():
    assert (
        find(st.integers(0, 2**16), lambda seed: a_draw(rows=1, columns=1, seed=seed).normal().item() > 2) > 0
    )
