"""Blocks of chosen rows, where a grid follows the rows along one axis."""

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
    ],
)
def test_the_blocks_of_the_rows_are_found_whatever_the_other_axes_are(grid, axis, share, numbers):
    known = followed("k", grid, ROWS)
    assert (known.axis, known.rows_per_block) == (axis, share)
    assert list(numbers_of(known, grid, ROWS)) == numbers


@pytest.mark.parametrize("grid", [(8, 1, 1), (132, 1, 1), (100, 1, 1), (131, 131, 1), (1, 1, 1)])
def test_no_rows_are_chosen_in_a_grid_that_does_not_divide_them_along_one_axis(grid):
    with pytest.raises(RowsNotFollowedError, match="does not follow the rows"):
        followed("k", grid, ROWS)


def test_what_would_be_too_many_blocks_is_refused():
    grid = (5000, 131, 1)
    with pytest.raises(RowsNotFollowedError):
        numbers_of(followed("k", grid, ROWS), grid, ROWS)
