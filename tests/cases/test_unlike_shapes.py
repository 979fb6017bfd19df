"""Shapes where another way of calling differs as at no shape that is tried anyway: few, small, exact."""

import pytest

from verifier.cases.priced_shape import CASE_SECONDS, price
from verifier.cases.unlike_shapes import MOST_NAMED, ends_of, points_for_ways, unlike_shapes
from verifier.records.planned_launches import WRAPPER, Planned, Unlike

TRIED = ((4, 33, 0), (3, 128, 0))
ENDS = ((3, 1 << 20, 0), (1 << 17, 3, 0), (1 << 17, 1 << 15, 0))


def found(unlike, points=ENDS, plain=frozenset(), allowed=lambda point: True, tried=TRIED):
    """Return rows and columns of what is chosen where `unlike` says what one way does at rows and columns."""

    def look(points, ways):
        assert set(ways) <= {"sideways"}
        return {"sideways": {p: unlike(*p[:2]) for p in points}}

    return [(s.rows, s.columns) for s in unlike_shapes(look, points, tried, plain, allowed)]


def more(*words):
    return Unlike(more=frozenset(words), ran=frozenset(words))


@pytest.mark.parametrize("limit", [129, 4097, 50000])
def test_beyond_a_threshold_of_columns_or_of_rows_the_first_extent_is_taken(limit):
    assert found(lambda _, columns: more("other") if columns >= limit else Unlike()) == [(3, limit)]
    assert found(lambda rows, _: more("other") if rows >= limit else Unlike()) == [(limit, 3)]


def test_two_thresholds_that_have_to_be_met_together_are():
    assert found(lambda rows, columns: more("k") if rows > 100 and columns > 1000 else Unlike()) == [
        (101, 1001)
    ]


def test_two_that_need_not_are_met_by_cheaper_shapes_apart():
    def unlike(rows, columns):
        return more(*["a"] * (rows > 1000), *["b"] * (columns > 4096))

    assert sorted(found(unlike)) == [(3, 4097), (1001, 3)]


def test_what_holds_at_one_number_of_the_sources_alone_is_met():
    known = {p: Planned(features=frozenset({"k"})) for p in ENDS}
    points = points_for_ways(ends_of(known), (), [1536])
    assert {(1536, 1536, 0), (1537, 1537, 0), *ENDS} == set(points)
    assert found(lambda _, columns: more("k") if columns == 1536 else Unlike(), points) == [(3, 1536)]


def test_what_shows_at_a_shape_that_is_tried_asks_for_no_other():
    assert found(lambda rows, columns: more("k: x is None")) == []
    assert found(lambda rows, columns: Unlike(other=frozenset({"k: eps is another"}))) == []


def test_a_number_that_changes_again_beyond_a_threshold_is_no_longer_the_same():
    def unlike(_, columns):
        return Unlike(other=frozenset({f"k: eps is {2 if columns > 300 else 1.5} times as large"}))

    assert found(unlike) == [(3, 301)]


def test_what_no_longer_runs_counts_where_it_runs_in_small_shapes_of_the_same_way():
    statement = f"{WRAPPER}k.py:7"

    def lost(_, columns):
        return Unlike(less=frozenset({statement, "k: x is None"})) if columns > 300 else Unlike(ran=ran)

    ran = frozenset({statement, "k: x is None"})
    assert found(lost) == [(3, 301)]
    ran = frozenset()
    assert found(lost) == []


def test_a_size_that_plain_calls_have_elsewhere_is_nothing_new_and_a_choice_is():
    for feature, shapes in (("k: loops over n by BLOCK 3", []), ("k: bias is None", [(3, 5001)])):
        at = more(feature)
        assert found(lambda _, c, at=at: at if c > 5000 else Unlike(), plain=frozenset({feature})) == shapes
        assert found(lambda _, c, at=at: at if c > 5000 else Unlike()) == [(3, 5001)]


def test_nothing_is_looked_at_that_is_not_allowed():
    assert found(lambda _, c: more("k") if c > 5000 else Unlike(), allowed=lambda p: p[1] <= 5000) == []
    odd = found(
        lambda _, c: more("k") if c > 5000 else Unlike(), allowed=lambda p: p[1] % 64 == 0 or p[1] < 9
    )
    assert odd
    assert all(columns % 64 == 0 for _, columns in odd)


def test_no_more_are_named_than_a_few_and_those_that_are_too_dear_have_their_price():
    thresholds = [1000 * k for k in range(1, 9)]
    several = found(
        lambda _, c: more(*(f"k{t}" for t in thresholds if t < c < t + 1000)),
        [(3, t + 1, 0) for t in thresholds],
    )
    assert len(several) == MOST_NAMED

    def look(points, _ways):
        return {"sideways": {p: more("k") if p[0] * p[1] > 1 << 25 else Unlike() for p in points}}

    (shape,) = unlike_shapes(look, ENDS, TRIED, frozenset(), lambda _: True)
    assert shape.seconds == round(price(shape.rows, shape.columns), 2)
    assert shape.seconds > CASE_SECONDS


def test_a_compilation_that_is_paid_for_makes_a_shape_cheaper():
    def cost(paid):
        def look(points, _ways):
            wide = Unlike(more=frozenset({"k"}), compiled=kernel)
            usual = Unlike(compiled=kernel if paid else frozenset())
            return {"sideways": {p: wide if p[1] > 4096 else usual for p in points}}

        return unlike_shapes(look, ENDS, TRIED, frozenset(), lambda _: True)[0].seconds

    kernel = frozenset({("k[16]", 4096)})
    assert cost(paid=False) > cost(paid=True) + 0.3


def test_the_ends_are_the_largest_extents_at_which_the_wrapper_answers():
    known = {
        (1, 8192, 0): Planned(),
        (1, 65537, 0): Planned(refused="too long"),
        (1 << 17, 2, 0): Planned(),
        (4096, 4096, 0): Planned(),
        (1, 1 << 18, 1): Planned(),
    }
    assert ends_of(known) == ((1, 8192, 0), (1 << 17, 2, 0), (4096, 4096, 0))
    assert ends_of({}) == ()
