"""The four formats, and rounding into them, against exact rational arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import find, given
from hypothesis import strategies as st

from strategies.dtypes import dtypes
from strategies.formats import FLOAT_NAMES, float_format, round_to_format, to_tensor

# Precision, exponent of the smallest normal, exponent of the largest number: IEEE 754-2008, table 3.5;
# bfloat16 is float32 with its significand cut to 8 bits.
PARAMETERS = {
    "float16": (11, -14, 15),
    "bfloat16": (8, -126, 127),
    "float32": (24, -126, 127),
    "float64": (53, -1022, 1023),
}


def nearest(value, target):
    """Round a float64 to the format in rational arithmetic, and hold overflow at the largest number."""
    exact = Fraction(value)
    if exact == 0:
        return value
    exponent = math.frexp(value)[1] - 1
    quantum = Fraction(2) ** (max(exponent, target.minimum_exponent) - target.precision + 1)
    # round() of a fraction goes to the nearest integer, ties to even
    rounded = round(exact / quantum) * quantum
    largest = Fraction(target.maximum)
    return float(max(-largest, min(largest, rounded)))


@pytest.mark.parametrize("name", FLOAT_NAMES)
def test_a_format_has_the_parameters_of_its_standard(name):
    target = float_format(name)
    assert (target.precision, target.minimum_exponent, target.maximum_exponent) == PARAMETERS[name]
    largest = (2 - Fraction(2) ** (1 - target.precision)) * Fraction(2) ** target.maximum_exponent
    assert Fraction(target.maximum) == largest


@pytest.mark.parametrize("name", FLOAT_NAMES)
def test_the_smallest_number_is_not_zero_and_its_half_is(name):
    target = float_format(name)
    smallest = math.ldexp(1.0, target.subnormal_exponent)
    kept, lost = to_tensor(np.array([smallest, smallest / 2]), target).double().tolist()
    assert (kept, lost) == (smallest, 0.0)


@given(st.sampled_from(FLOAT_NAMES), st.floats(allow_nan=False, allow_infinity=False))
def test_rounding_is_to_nearest_even_anywhere(name, value):
    target = float_format(name)
    assert round_to_format(np.array([value]), target).tolist() == [nearest(value, target)]


@given(st.sampled_from(FLOAT_NAMES), st.integers(-(2**54), 2**54), st.integers(-160, 60))
def test_rounding_is_to_nearest_even_near_ties_and_subnormals(name, significand, exponent):
    target = float_format(name)
    value = math.ldexp(significand, exponent)
    assert round_to_format(np.array([value]), target).tolist() == [nearest(value, target)]


def test_rounding_to_float16_happens_once():
    # 1 + 2^-11 + 2^-30 lies above a tie, which rounding to float32 first would make it
    value = 1 + 2.0**-11 + 2.0**-30
    assert torch.tensor(value, dtype=torch.float32).half().item() == 1.0
    assert round_to_format(np.array([value]), float_format("float16")).item() == 1 + 2.0**-10


@pytest.mark.parametrize("name", FLOAT_NAMES)
def test_infinities_and_nan_stay(name):
    rounded = round_to_format(np.array([np.inf, -np.inf, np.nan]), float_format(name))
    assert rounded[:2].tolist() == [np.inf, -np.inf]
    assert np.isnan(rounded[2])


@pytest.mark.parametrize("name", FLOAT_NAMES)
def test_what_was_rounded_is_exact_in_the_dtype(name):
    target = float_format(name)
    significands = np.linspace(-3, 3, 1001)
    rounded = round_to_format(np.ldexp(significands, np.arange(1001) % 60 - 40), target)
    assert to_tensor(rounded, target).double().tolist() == rounded.tolist()


def test_a_tensor_keeps_its_rank_down_to_none():
    for shape in ((), (1,), (2, 0), (2, 3)):
        assert to_tensor(np.zeros(shape), float_format("bfloat16")).shape == shape


@pytest.mark.parametrize("name", ["int32", "float8_e4m3fn", "half", "torch.float", ""])
def test_other_dtypes_are_refused(name):
    with pytest.raises(ValueError, match="not supported; choose from float16"):
        float_format(name)


def test_dtypes_reaches_each_and_shrinks_to_the_first():
    for name in FLOAT_NAMES:
        assert find(dtypes(), lambda drawn, name=name: drawn == name) == name
    assert find(dtypes(allow=("bfloat16", "float32")), lambda _: True) == "bfloat16"


def test_dtypes_refuses_bad_arguments_before_it_draws():
    with pytest.raises(ValueError, match="allow is empty"):
        dtypes(allow=())
    with pytest.raises(ValueError, match="'int8' is not supported"):
        dtypes(allow=("float32", "int8"))
    with pytest.raises(TypeError, match="not one string"):
        dtypes(allow="float32")
