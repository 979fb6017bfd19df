"""Blocks of chosen rows, where a grid follows the rows along one axis."""

from dataclasses import replace

import pytest

from verifier.machine.execute.chosen_blocks import RowsNotFollowedError, followed, numbers_of
from verifier.machine.model import ChosenRows

ROWS = ChosenRows(extent=131, rows=(0, 65, 66, 130))


@pytest.mark.parametrize(
    ("grid", "axis", "share", "numbers"),
    [
        ((131, 1, 1), 0, 1, [0, 65, 66, 130]),
        ((1, 131, 1), 1, 1, [0, 65, 66, 130]),
        ((2, 131, 1), 1, 1, [0, 1, 130, 131, 132, 133, 260, 261]),
        ((33, 1, 1), 0, 4, [0, 16, 32]),
        ((9, 1, 1), 0, 15, [0, 4, 8]),
        ((131, 12, 1), 0, 1, [131 * y + x for y in range(12) for x in (0, 65, 66, 130)]),
    ],
)
def test_the_blocks_of_the_rows_are_found_whatever_the_other_axes_are(grid, axis, share, numbers):
    known = followed("k", grid, ROWS, 0)
    assert (known.axis, known.rows_per_block) == (axis, share)
    assert list(numbers_of(known, grid, ROWS)) == numbers


def test_blocks_of_many_rows_are_known_where_there_are_as_many_of_them():
    many = ChosenRows(extent=4099, rows=(0, 2049, 4098))
    assert followed("k", (65, 1, 1), many, 0).rows_per_block == 64
    assert list(numbers_of(followed("k", (65, 1, 1), many, 0), (65, 1, 1), many)) == [0, 32, 64]
    assert followed("k", (64, 1, 1), many, 0).axis is None


@pytest.mark.parametrize("grid", [(131, 131, 1), (9000, 1, 1), (95, 95, 1)])
def test_no_rows_are_chosen_in_a_grid_that_does_not_divide_them_along_one_axis(grid):
    with pytest.raises(RowsNotFollowedError, match="does not follow the rows"):
        followed("k", grid, ROWS, 0)


@pytest.mark.parametrize("grid", [(8, 1, 1), (132, 1, 1), (100, 2, 1), (1, 1, 1)])
def test_a_small_grid_that_has_nothing_to_do_with_rows_runs_whole(grid):
    known = followed("k", grid, ROWS, 0)
    assert (known.axis, known.grid) == (None, grid)
    assert list(numbers_of(known, grid, ROWS)) == list(range(grid[0] * grid[1]))


def test_a_grid_that_follows_rows_in_another_way_than_before_is_refused():
    rows, join = (followed("k", grid, ROWS, 0) for grid in ((131, 1, 1), (8, 1, 1)))
    huge = replace(ROWS, extent=2**21 + 8, as_before=(rows, join))
    assert followed("k", (2**21 + 8, 1, 1), huge, 0) == rows
    assert followed("k", (8, 1, 1), huge, 1) == join
    for grid, number in (((8, 1, 1), 0), ((9, 1, 1), 1), ((8, 1, 1), 2), ((2**20 + 4, 1, 1), 0)):
        with pytest.raises(RowsNotFollowedError):
            followed("k", grid, huge, number)


def test_what_would_be_too_many_blocks_is_refused():
    grid = (9000, 131, 1)
    with pytest.raises(RowsNotFollowedError):
        numbers_of(followed("k", grid, ROWS, 0), grid, ROWS)
