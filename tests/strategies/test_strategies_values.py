"""Recipes for values: deterministic, printable, storable, and refused when they make no sense."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import find, given, settings
from hypothesis import strategies as st

from strategies.formats import FLOAT_NAMES, float_format, to_tensor
from strategies.hazards import discover, hazard_names
from strategies.values import Values, values

SEARCH = settings(max_examples=5000, database=None, derandomize=True)

# The first 16 digits of the SHA-256 of the bytes.
GOLDEN = {
    "float16": "bffa2ba9e29b9452",
    "bfloat16": "fd5c8321d77a2bd0",
    "float32": "bfc0d3679cb8831e",
    "float64": "0dcc4bd0d33881b0",
}

every_recipe = st.sampled_from(FLOAT_NAMES).flatmap(lambda dtype: values(hazards=hazard_names(), dtype=dtype))


def bits(tensor):
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


@given(every_recipe, st.integers(0, 4), st.integers(0, 9), st.sampled_from(FLOAT_NAMES))
def test_a_recipe_makes_the_same_bits_each_time(recipe, rows, columns, dtype):
    assert bits(recipe.fill((rows, columns), dtype)) == bits(recipe.fill((rows, columns), dtype))


@given(every_recipe, st.integers(0, 4), st.integers(0, 9))
def test_a_row_does_not_depend_on_the_number_of_rows(recipe, rows, columns):
    many = recipe.fill((rows + 5, columns), "bfloat16")
    assert bits(recipe.fill((rows, columns), "bfloat16")) == bits(many[:rows])


@given(every_recipe)
def test_a_recipe_survives_json(recipe):
    assert Values.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


@given(every_recipe)
def test_a_recipe_prints_as_python_that_makes_it(recipe):
    assert eval(repr(recipe)) == recipe


def test_a_recipe_prints_only_what_is_not_default():
    assert repr(Values()) == "Values()"
    assert repr(Values(hazard="cancellation", strength=4)) == "Values(hazard='cancellation', strength=4)"
    assert repr(Values(odd_rows=Values(seed=2))) == "Values(odd_rows=Values(seed=2))"


def test_the_bits_are_those_that_this_test_has_written_down():
    # Stored cases name recipes: they must mean the same numbers for ever, on every platform.
    recipe = Values(strength=2, seed=11, row_scale=1, odd_rows=Values(hazard="lognormal", seed=12))
    for dtype, digest in GOLDEN.items():
        assert hashlib.sha256(bits(recipe.fill((5, 67), dtype))).hexdigest()[:16] == digest


@pytest.mark.parametrize("dtype", FLOAT_NAMES)
def test_a_recipe_fills_in_the_dtype_by_name_or_object(dtype):
    by_name = Values().fill((2, 3), dtype)
    by_object = Values().fill((2, 3), getattr(torch, dtype))
    assert by_name.dtype == by_object.dtype == getattr(torch, dtype)
    assert bits(by_name) == bits(by_object)


def test_leading_axes_are_rows():
    deep = Values(hazard="wide_exponents").fill((2, 3, 4), "float32")
    assert bits(deep) == bits(Values(hazard="wide_exponents").fill((6, 4), "float32"))
    assert deep.is_contiguous()


def test_chosen_axes_are_the_columns():
    channels = Values(hazard="constant_row", seed=1).fill((2, 3, 4, 5), "float32", axes=(0, 2, 3))
    per_channel = [set(channels[:, channel].flatten().tolist()) for channel in range(3)]
    assert [len(numbers) for numbers in per_channel] == [1, 1, 1]
    assert len(set.union(*per_channel)) == 3
    groups = Values(hazard="constant_row", seed=1).fill((2, 3, 4, 5), "float32", axes=(-3, -2, -1))
    assert [len(set(sample.flatten().tolist())) for sample in groups] == [1, 1]


def test_axes_keep_the_order_of_elements():
    filled = Values(hazard="sorted_row").fill((7, 3), "float64", axes=(0,))
    assert bool((filled.diff(dim=0) >= 0).all())
    assert filled.is_contiguous()
    # an order of axes that is not its own inverse
    turned = Values(seed=1).fill((2, 3, 4), "float64", axes=(0, 1))
    assert torch.equal(turned.permute(2, 0, 1).reshape(4, 6), Values(seed=1).fill((4, 6), "float64"))


def test_scale_multiplies_by_a_power_of_two():
    plain = Values(seed=3).fill((9, 5), "float64")
    assert torch.equal(Values(seed=3, scale=-7).fill((9, 5), "float64"), plain * 2.0**-7)
    assert torch.equal(Values(seed=3, negative=True).fill((9, 5), "float64"), -plain)
    per_row = torch.tensor([2.0 ** (3 * (row % 8)) for row in range(9)], dtype=torch.float64)
    assert torch.equal(Values(seed=3, row_scale=3).fill((9, 5), "float64"), plain * per_row[:, None])


def test_odd_rows_follow_their_own_recipe():
    other = Values(hazard="max_magnitude", seed=8)
    mixed = Values(seed=3, odd_rows=other).fill((6, 5), "float32")
    assert torch.equal(mixed[0::2], Values(seed=3).fill((6, 5), "float32")[0::2])
    assert torch.equal(mixed[1::2], other.fill((6, 5), "float32")[1::2])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"hazard": "overflow"}, "there is no hazard 'overflow'; known are ordinary"),
        ({"strength": -1}, "goes from 0 to 15"),
        ({"strength": 16}, "goes from 0 to 15"),
        ({"seed": -1}, "never negative"),
        ({"distinct": 0}, "None or at least 1"),
        ({"scale": 5000}, "beyond every exponent range"),
        ({"row_scale": -5000}, "beyond every exponent range"),
    ],
)
def test_recipes_without_sense_are_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        Values(**arguments)


def test_fill_refuses_what_it_cannot_make():
    with pytest.raises(ValueError, match="not supported"):
        Values().fill((2, 3), torch.int32)
    with pytest.raises(ValueError, match="negative extent"):
        Values().fill((2, -3), "float32")
    with pytest.raises(ValueError, match="must be distinct axes"):
        Values().fill((2, 3), "float32", axes=(2,))
    with pytest.raises(ValueError, match="must be distinct axes"):
        Values().fill((2, 3), "float32", axes=(1, -1))


def test_json_with_an_unknown_setting_is_refused():
    with pytest.raises(ValueError, match="no setting power"):
        Values.from_json({"hazard": "zeros", "power": 3})


def test_values_refuses_bad_arguments_before_it_draws():
    with pytest.raises(ValueError, match="hazards is empty"):
        values(hazards=())
    with pytest.raises(ValueError, match="no hazard 'nan'"):
        values(hazards=("zeros", "nan"))
    with pytest.raises(ValueError, match="not supported"):
        values(dtype="int8")
    with pytest.raises(TypeError, match="not one string"):
        values(hazards="zeros")


@given(values(hazards=("ties", "drift"), mixed_rows=False))
def test_values_draws_only_what_is_allowed(recipe):
    assert recipe.hazard in ("ties", "drift")
    assert recipe.odd_rows is None


@given(values())
def test_values_are_finite_unless_asked(recipe):
    assert torch.isfinite(recipe.fill((3, 5), "float16")).all()


@pytest.mark.parametrize("name", hazard_names())
def test_every_hazard_is_found_and_shrinks_to_its_plain_form(name):
    found = find(values(hazards=hazard_names()), lambda recipe: recipe.hazard == name, settings=SEARCH)
    assert found == Values(hazard=name, distinct=2)


def test_strength_reaches_the_digits_of_float64():
    found = find(values(dtype="float64"), lambda recipe: recipe.strength >= 12, settings=SEARCH)
    assert found == Values(strength=12, distinct=2)
    assert float_format("float64").decimal_digits == 15


def test_ordinary_values_look_for_no_hazards(monkeypatch):
    """Defaults of records are made while modules are imported, and imports find no plug-ins."""

    def looked():
        raise AssertionError("an import would have looked for hazards")

    monkeypatch.setattr("strategies.values.discover", looked)
    assert Values() == Values(hazard="ordinary")
    with pytest.raises(AssertionError, match="looked for hazards"):
        Values(hazard="lognormal")


@given(every_recipe, st.integers(0, 9), st.integers(0, 9), st.sampled_from(FLOAT_NAMES))
def test_numbers_that_were_made_before_are_the_same_and_nobody_elses(recipe, rows, columns, dtype):
    target = float_format(dtype)
    anew = to_tensor(recipe._filled((rows, columns), target, (-1,)), target)
    first = recipe.fill((rows, columns), dtype)
    assert bits(first) == bits(anew)
    first.fill_(3.0)
    assert bits(recipe.fill((rows, columns), dtype)) == bits(anew)


def test_planted_zeros_of_either_sign_are_told_apart():
    signs = [torch.signbit(Values(planted=(z,)).fill((1, 1), "float32")).item() for z in (0.0, -0.0)]
    assert signs == [False, True]


def test_a_hazard_that_takes_the_name_of_another_makes_its_own_numbers(monkeypatch):
    before = Values(hazard="ordinary").fill((2, 3), "float32")
    other = replace(discover()["ordinary"], generate=lambda draw: np.full(draw.shape, 7.0))
    monkeypatch.setitem(discover(), "ordinary", other)
    assert Values(hazard="ordinary").fill((2, 3), "float32").unique().tolist() == [7.0]
    monkeypatch.undo()
    assert torch.equal(Values(hazard="ordinary").fill((2, 3), "float32"), before)
