"""Where grids stop to grow: it is found to the row, and a shape beyond it is wanted."""

import math

import pytest
from test_reaching_shapes import extents

from verifier.cases.bounded_grids import BOUNDED, beyond
from verifier.cases.covering_shapes import cover
from verifier.cases.reaching_shapes import seen_around
from verifier.cases.tried_extents import MOST_ROWS
from verifier.records.planned_launches import Planned


def known_of(grid, allowed=lambda point: True):
    """Return what is known of a kernel with such a grid."""

    def look(points):
        return [Planned(features=frozenset({"k"}), grids={"k": grid(*point)}) for point in points]

    return seen_around(look, allowed, 1, tuple)


def told(known):
    return {f for seen in known.values() for f in seen.features if f.startswith(BOUNDED)}


@pytest.mark.parametrize(
    ("blocks", "rows"), [(132, 1), (1000, 1), (60_000, 1), (65_535, 2), (100_000, 1), (77, 8)]
)
def test_a_shape_beyond_a_bounded_grid_is_wanted_and_it_is_the_least(blocks, rows):
    known = known_of(lambda r, _c, _v: (min(math.ceil(r / rows), blocks), 1, 1))
    if (first := beyond((blocks - 1) * rows + 1)) > MOST_ROWS:
        assert told(known) == set()
        return
    assert told(known) == {f"{BOUNDED}k x along rows"}
    assert [e for e in extents(cover(known)) if e[0] >= first] == [(first, 3)]
    assert first > blocks * rows


def test_a_grid_that_grows_with_the_columns_is_bounded_along_them():
    known = known_of(lambda r, c, _v: (1, min(math.ceil(c / 256), 64), 1))
    assert told(known) == {f"{BOUNDED}k y along columns"}
    assert any(columns > 64 * 256 for _, columns in extents(cover(known)))


@pytest.mark.parametrize(
    "grid",
    [
        lambda r, c, v: (r, 1, 1),
        lambda r, c, v: (132, 1, 1),
        lambda r, c, v: (r, math.ceil(c / 512), 1),
        lambda r, c, v: (max(1, 4096 // r), 1, 1),
    ],
    ids=["follows", "always the same", "both", "falls"],
)
def test_a_grid_that_has_no_bound_asks_for_nothing(grid):
    assert told(known_of(grid)) == set()


def test_no_shape_outside_the_domain_is_asked_for():
    known = known_of(lambda r, _c, _v: (min(r, 1000), 1, 1), lambda point: point[0] <= 1024)
    assert told(known) == set()
    assert max(rows for rows, *_ in known) <= 1024
