"""Extents and shapes: what is reached, what is kept within limits, what they shrink to."""

import itertools
import math

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from strategies.shapes import (
    BLOCK_SIZES,
    extents,
    hazardous_extents,
    leading_shapes,
    row_column_shapes,
    shapes,
)

SEARCH = settings(max_examples=5000, database=None, derandomize=True)


def test_every_block_size_is_hazardous_with_both_neighbours():
    every = hazardous_extents(max_extent=10000)
    assert {n + d for n in BLOCK_SIZES for d in (-1, 0, 1)} | {0, 1, 2, 3, 769, 1000, 1151} <= set(every)


@given(st.integers(0, 100), st.integers(0, 10000))
def test_hazardous_extents_are_increasing_and_within_their_range(low, more):
    every = hazardous_extents(min_extent=low, max_extent=low + more)
    assert every[0] == low
    assert every[-1] == low + more
    assert all(a < b for a, b in itertools.pairwise(every))


@pytest.mark.parametrize("wanted", [0, 1, 2, 33, 127, 769, 1024, 1025, 1151, 4097, 8191])
def test_a_hazardous_extent_is_found(wanted):
    assert find(extents(), lambda n: n == wanted, settings=SEARCH) == wanted


def test_an_extent_between_the_hazardous_ones_is_found():
    every = hazardous_extents()
    assert find(extents(), lambda n: n > 3 and n not in every, settings=SEARCH) < 13


@pytest.mark.parametrize("threshold", [0, 1, 2, 64, 769, 1025, 4096])
def test_an_extent_shrinks_to_the_smallest_hazardous_one(threshold):
    assert find(extents(), lambda n: n >= threshold, settings=SEARCH) == threshold


@given(st.data())
def test_row_column_shapes_keep_their_limits(data):
    limits = {name: data.draw(st.integers(0, 5)) for name in ("min_rows", "min_columns")}
    room = max(limits["min_rows"], 1) * max(limits["min_columns"], 1) + data.draw(st.integers(0, 5000))
    rows, columns = data.draw(row_column_shapes(max_elements=room, max_rows=200, max_columns=700, **limits))
    assert limits["min_rows"] <= rows <= 200
    assert limits["min_columns"] <= columns <= 700
    assert rows * columns <= room


@given(st.data())
def test_shapes_keep_their_limits(data):
    drawn = data.draw(shapes(max_elements=600, min_rank=2, max_rank=4, min_extent=1, min_columns=3))
    assert 2 <= len(drawn) <= 4
    assert math.prod(drawn) <= 600
    assert min(drawn) >= 1
    assert drawn[-1] >= 3


@given(leading_shapes(max_elements=24, min_rank=1, max_rank=3, min_extent=2, max_extent=6))
def test_leading_shapes_keep_their_limits(drawn):
    assert 1 <= len(drawn) <= 3
    assert math.prod(drawn) <= 24
    assert set(drawn) <= set(range(2, 7))


def test_shapes_shrink_to_the_smallest_that_shows_it():
    assert find(row_column_shapes(max_elements=2**20), lambda _: True) == (0, 0)
    wide = find(row_column_shapes(max_elements=2**20), lambda s: s[0] >= 2 and s[1] > 1024, settings=SEARCH)
    assert wide == (2, 1025)
    three = find(shapes(max_elements=4096), lambda s: len(s) == 3 and math.prod(s) > 0, settings=SEARCH)
    assert three == (1, 1, 1)
    assert find(leading_shapes(), lambda _: True) == ()


def test_empty_shapes_are_found_in_either_axis():
    find(row_column_shapes(max_elements=4096), lambda s: s[0] == 0 and s[1] > 1, settings=SEARCH)
    find(row_column_shapes(max_elements=4096), lambda s: s[0] > 1 and s[1] == 0, settings=SEARCH)


@pytest.mark.parametrize(
    ("strategy", "arguments", "sentence"),
    [
        (extents, {"min_extent": -1}, "never negative"),
        (extents, {"min_extent": 5, "max_extent": 4}, "less than min_extent = 5"),
        (
            row_column_shapes,
            {"max_elements": 5, "min_rows": 2, "min_columns": 3},
            "no shape of at least 2 x 3",
        ),
        (row_column_shapes, {"max_elements": 5, "min_rows": -2}, "never negative"),
        (leading_shapes, {"min_extent": 5, "max_rank": 3}, "exceed 64 elements"),
        (leading_shapes, {"min_rank": 2, "max_rank": 1}, "less than min_rank"),
        (shapes, {"max_elements": 9, "min_rank": 0}, "at least one axis"),
        (shapes, {"max_elements": 9, "min_extent": -1}, "never negative"),
        (shapes, {"max_elements": 9, "min_extent": 3, "min_columns": 2}, "no shape of rank 4"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_drawn(strategy, arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        strategy(**arguments)
