"""Shapes by what they reach: steps are found wherever they lie, and few shapes show all that was seen."""

import math
from dataclasses import replace

import pytest
from test_recipes import taking

from verifier.cases.covering_shapes import cover, too_dear
from verifier.cases.plan import Plan
from verifier.cases.priced_shape import CASE_SECONDS, Reaching
from verifier.cases.reaching_shapes import failing, seen_around, too_wide
from verifier.cases.steering import steered, steering, wanted_again
from verifier.cases.tried_extents import MOST_ELEMENTS, MOST_PAIRED, ladder, near_literals, pairs_of_literals
from verifier.cases.variations import Variation
from verifier.execution.loops_of_source import loops_of_cuda
from verifier.machine.model import MAX_GRID_YZ
from verifier.ops import op
from verifier.records.planned_launches import Planned


def swept(features, *, literals=(), allowed=lambda point: True, variants=1):
    """Return the shapes that reach what a pretended wrapper launches, and the points it was asked for."""

    def look(points):
        asked.extend(points)
        return [Planned(features=frozenset(features(*point))) for point in points]

    asked = []
    return cover(seen_around(look, allowed, variants, lambda: literals)), asked


def extents(shapes):
    return {(shape.rows, shape.columns) for shape in shapes}


@pytest.mark.parametrize("limit", [96, 1000, 16384, 57856, 65535, 700_001])
def test_a_step_in_the_columns_is_found_to_the_column(limit):
    shapes, asked = swept(lambda rows, columns, variant: {"wide" if columns > limit else "narrow"})
    assert {limit, limit + 1} <= {columns for _, columns in extents(shapes)}
    assert len(asked) < 700


def test_a_step_in_the_rows_that_depends_on_the_columns_is_found():
    def features(rows, columns, variant):
        yield "kernel"
        if columns > 16384:
            yield "tiled"
            yield "tiled: loops over chunk n" if rows > 128 else "tiled: loops over chunk 1"

    shapes, _ = swept(features)
    assert (129, 16385) in extents(shapes)


def test_a_kernel_of_one_remainder_is_found_through_a_literal_of_the_source():
    def features(rows, columns, variant):
        return {"special" if columns % 96 == 0 else "usual"}

    assert any(columns % 96 == 0 for _, columns in extents(swept(features, literals={96, 7})[0]))


def test_what_two_literals_decide_together_is_found():
    def features(rows, columns, variant):
        return {"special" if rows % 7 == 0 and columns % 96 == 0 else "usual"}

    found = extents(swept(features, literals={96, 7, 1024})[0])
    assert any(rows % 7 == 0 and columns % 96 == 0 for rows, columns in found)


def test_a_statement_that_changes_no_launch_is_reached_on_both_sides_of_its_step():
    """A kernel may be given another number there: what is launched looks the same."""

    def features(rows, columns, variant):
        return {"kernel", *(["wrapper: a.py:7"] if columns > 1000 else [])}

    shapes, _ = swept(features)
    assert {1000, 1001} <= {columns for _, columns in extents(shapes)}
    assert [shape.shows for shape in shapes] == [True, False]


def test_statements_ask_for_no_side_where_launches_change_as_well():
    def launched(rows, columns, variant):
        return {"wide"} if columns > 1000 else {"narrow"}

    def features(rows, columns, variant):
        return {*launched(rows, columns, variant), f"wrapper: a.py:{7 if columns > 1000 else 9}"}

    assert extents(swept(features)[0]) == extents(swept(launched)[0])


def test_both_sides_of_a_number_that_kernels_compare_with_come_first_though_no_launch_tells():
    def look(points):
        return [
            Planned(features=frozenset({"kernel"}), forward=Planned(features=frozenset({"kernel"})))
            for _ in points
        ]

    known = seen_around(look, lambda point: point[0] < 5000, 1, lambda: (), compared=(700, 6000))
    for seen in (known, {point: planned.forward for point, planned in known.items()}):
        shapes = cover(seen)
        sides = {(700, 3), (701, 3), (3, 700), (3, 701), (3, 6000), (3, 6001)}
        assert extents(shapes) >= sides
        assert all(shape.shows for shape in shapes if (shape.rows, shape.columns) in sides)
        assert not any(shape.rows > 5000 for shape in shapes)


def test_what_is_refused_or_outside_is_no_shape_and_what_hangs_ends_the_search():
    def look(points):
        return [Planned(features=frozenset({"k"}), refused="no" if c > 8 else "") for _, c, _ in points]

    assert all(shape.columns <= 8 for shape in cover(seen_around(look, lambda _: True, 1, lambda: ())))
    assert cover(seen_around(lambda points: [], lambda _: True, 1, lambda: ())) == []
    shapes, asked = swept(lambda *_: {"k"}, allowed=lambda point: 5 <= point[1] <= 9)
    assert all(5 <= columns <= 9 for _, columns, _ in asked)
    assert shapes


def test_a_price_counts_each_compilation_once():
    known = {
        (1, 8, 0): Planned(features=frozenset({"a", "a: n 1"}), compiled=frozenset({("a", 16)})),
        (2, 8, 0): Planned(features=frozenset({"a", "a: n n"}), compiled=frozenset({("a", 16)})),
        (1, 99, 0): Planned(features=frozenset({"b"}), compiled=frozenset({("b", 16384)})),
    }
    first, wide, again = cover(known)
    assert [(s.rows, s.columns) for s in (first, again, wide)] == [(1, 8), (2, 8), (1, 99)]
    assert again.seconds < 0.1 < first.seconds < wide.seconds


def test_a_loop_that_turns_comes_before_cheaper_shapes_in_which_none_does():
    def features(rows, columns, variant):
        yield "kernel"
        yield f"kernel: grid x {rows % 7}"
        yield f"kernel: loops over run {'n' if rows > 60_000 else '1'}"

    (first, second, *others), _ = swept(features)
    assert first.seconds < 0.1
    assert second.rows > 60_000
    assert min(shape.seconds for shape in others) < 0.1 < second.seconds


def test_of_shapes_at_which_a_loop_first_turns_the_cheaper_comes_before_the_one_with_more_turns():
    def features(rows, columns, variant):
        tiles = 1 + (columns >= 18) + (columns >= 54)
        yield "kernel"
        yield from (f"kernel: loops over {name} {tiles}" for name in "bcd")
        yield f"kernel: loops over a {'n' if rows > 60_000 and columns >= 18 else '1'}"

    shapes, _ = swept(features)
    few, many = (shape for shape in shapes if shape.shows)
    assert (few.rows < 100, few.columns) == (True, 18)
    assert (many.rows > 60_000, many.columns in {18, 19}) == (True, True)


def test_of_loops_in_c_those_that_go_by_ones_are_known_with_what_defines_their_end(tmp_path):
    path = tmp_path / "kernel.cu"
    path.write_text(
        "const int last = first + run < rows ? first + run : rows;\n"
        "for (int row = first; row < last; ++row) {}\n"
        "for (int i = threadIdx.x; i < columns; i += blockDim.x) {}\n"
    )
    loops = loops_of_cuda(path, "kernel")
    assert [n for n in ("run", "rows", "columns", "other") if loops.counts_to(n)] == ["run", "rows"]
    assert [n for n in ("run", "rows", "columns") if loops.strides_to(n)] == ["columns"]
    assert loops.named({"run": 2, "columns": 3, "other": 4}) == {"run": 2, "columns": 3}


def test_loops_of_functions_that_a_kernel_does_not_call_are_not_its_own(tmp_path):
    (tmp_path / "tiers.cuh").write_text(
        "#define PARTS inner(rows);\n"
        "__device__ void inner(int rows) {\n"
        "for (int i = 0; i < rows; i += blockDim.x) {}\n"
        "}\n"
        "__device__ void other(int run) {\n"
        "for (int i = 0; i < run; i += blockDim.x) {}\n"
        "}\n"
    )
    path = tmp_path / "kernel.cu"
    path.write_text(
        '#include "tiers.cuh"\n'
        "__global__ void here(int rows, int run) { PARTS }\n"
        "__global__ void there(int run) { other(run); }  // not inner\n"
    )

    def strides(kernel):
        return [n for n in ("rows", "run") if loops_of_cuda(path, kernel).strides_to(n)]

    assert (strides("here"), strides("there")) == (["rows"], ["run"])
    assert strides("of_a_macro") == ["rows", "run"]


def test_the_ladder_keeps_within_what_can_be_asked():
    shapes, asked = swept(lambda *_: {"k"}, variants=3)
    assert len(shapes) == 1
    assert {variant for _, _, variant in asked} == {0, 1, 2}
    assert max(rows * columns for rows, columns, _ in asked) <= MOST_ELEMENTS
    assert len(set(ladder(3))) < 900


def test_literals_on_the_ladder_are_left_out_and_multiples_are_tried():
    assert {columns for _, columns, _ in near_literals({1024, 1025, 3})} == set()
    assert {95, 96, 97, 192, 288} <= {columns for rows, columns, _ in near_literals({96}) if rows == 3}


def test_the_least_literals_are_tried_as_rows_beside_each_other_as_columns():
    points = [*pairs_of_literals({1, 5, 96, *range(1000, 1100)})]
    assert {(5, 96, 0), (96, 5, 0), (5, 5, 0), (1009, 1000, 0)} <= {*points}
    assert len(points) == MOST_PAIRED**2
    assert {*pairs_of_literals({5, 1 << 30})} == {(5, 5, 0)}


def test_of_group_norms_they_are_tried_as_groups_and_channels_too():
    the_op = op("group_norm")
    points = {*pairs_of_literals({32, 640, 7}, the_op.at_integers)}
    assert {(32, 640, 0), (64, 20, 1)} <= points
    assert {point for point in points if point[2]} == {(14, 1, 1), (64, 1, 1), (1280, 1, 1), (64, 20, 1)}

    def look(asked):
        extents = [the_op.shapes(*point) for point in asked]
        thin = [(s.scalars["num_groups"], s.tensors["input"][1]) == (32, 640) for s in extents]
        return [Planned(features=frozenset({"kernel", *["kernel of 640"] * one})) for one in thin]

    def seen(**at):
        known = seen_around(
            look, lambda p: the_op.shapes(*p) is not None, the_op.variants, lambda: (32, 640), **at
        )
        return {(shape.rows, shape.columns, shape.variant) for shape in cover(known)}

    assert (64, 20, 1) in seen(at=the_op.at_integers)
    assert (64, 20, 1) not in seen()
    shapes = the_op.shapes(64, 20, 1)
    assert (shapes.scalars["num_groups"], shapes.tensors["input"]) == (32, (2, 640))


def test_a_budget_takes_what_is_worth_its_price_and_names_what_it_leaves_out():
    shapes = [Reaching(rows=1, columns=9, seconds=2.0), Reaching(rows=129, columns=16385, seconds=7.5)]
    shapes.append(Reaching(rows=4, columns=4, seconds=1.0))
    chosen = steering([(1, 70000)], shapes, cases=9, seconds=4.0)
    assert [(s.rows, s.columns) for s in chosen.shapes] == [(1, 70000), (1, 9), (4, 4)]
    assert chosen.note("--budget quick") == "(129 x 16385): about 8 s, left out by --budget quick"
    assert steering((), shapes, cases=9, seconds=math.inf).note("") == ""
    assert len(steering((), shapes, cases=1, seconds=math.inf).shapes) == 1


def test_what_a_kernel_or_a_loop_shows_first_may_be_given_seconds_besides():
    shapes = [Reaching(rows=1, columns=9, seconds=2.0), Reaching(rows=129, columns=16385, seconds=5.5)]
    loop = replace(shapes[1], shows=True)
    for news in (loop, replace(shapes[1], opens=True)):
        chosen = steering((), [shapes[0], news], cases=1, seconds=4.0, for_news=5.5)
        assert chosen.shapes == (shapes[0], news)
    for refused in (
        steering((), shapes, cases=9, seconds=4.0, for_news=5.5),
        steering((), [shapes[0], loop], cases=9, seconds=4.0, for_news=5.4),
    ):
        assert refused.shapes == (shapes[0],)
    twice = [loop, replace(loop, rows=130)]
    assert steering((), twice, cases=0, seconds=4.0, for_news=9.0).left_out == (twice[1],)


def test_shapes_beyond_the_fixed_list_come_again_without_what_may_be_left_out():
    one = taking("layer_norm", "input", "weight", "bias", "eps")
    plan = Plan(max_columns=100)
    long, short = Reaching(rows=1, columns=101, seconds=2.0), Reaching(rows=1, columns=100, seconds=2.0)
    chosen = steering((), [long, short], cases=9, seconds=6.0, again=wanted_again(one, plan, few=False))
    assert chosen.shapes == (short, long, replace(long, variation=Variation.BARE))
    given = [recipes[0] for recipes in steered(one, plan, chosen.shapes)]
    assert [(r.columns, r.weight is None, r.bias is None) for r in given] == [
        (100, False, False), (101, False, False), (101, True, True)
    ]  # fmt: skip
    less = steering((), [long, short], cases=9, seconds=5.0, again=wanted_again(one, plan, few=False))
    assert less.note("--budget standard") == (
        "(1 x 101) without parameters: about 2 s, left out by --budget standard"
    )


def test_a_brief_search_runs_without_parameters_where_a_kernel_is_launched_first_and_where_it_is_told_to():
    one, plan = taking("layer_norm", "input", "weight", "bias", "eps"), Plan(max_columns=100)
    opening = Reaching(rows=1, columns=101, seconds=2.0, opens=True)
    beside = Reaching(rows=1, columns=102, seconds=2.0)
    again = wanted_again(one, plan, few=True)
    chosen = steering([(3, 200)], [opening, beside], cases=2, seconds=4.0, again=again, besides=(2, 2.0))
    named = Reaching(rows=3, columns=200)
    first, *others = (replace(opening, variation=variation) for variation in Variation)
    assert chosen.shapes == (
        named,
        *(replace(named, variation=variation) for variation in Variation),
        opening,
        beside,
        first,
    )
    assert chosen.left_out == (*others,)
    short = steering((), [opening, beside], cases=2, seconds=4.0, again=again)
    assert short.note("--budget quick").startswith("(1 x 101) without parameters: about 2 s, (1 x 101) with ")


def test_the_first_shape_that_launches_a_kernel_is_marked():
    shapes, _ = swept(lambda rows, columns, variant: {"wide" if columns > 1000 else "narrow"})
    opening = [shape for shape in shapes if shape.opens]
    assert sorted(shape.columns > 1000 for shape in opening) == [False, True]


def test_what_has_no_optional_parameter_does_not_come_again():
    required = taking("layer_norm", "input", "weight", "bias", "eps", bare=("weight", "bias"))
    again = wanted_again(required, Plan(max_columns=100), few=False)
    assert not again(Reaching(rows=1, columns=101))
    assert again(Reaching(rows=1, columns=101, opens=True)) == (Variation.FIRST,)


def test_a_brief_search_tries_shapes_otherwise_that_its_few_do_not_come_to():
    one = taking("layer_norm", "input", "weight", "bias", "eps")
    brief, long = (wanted_again(one, Plan(), few=few) for few in (True, False))
    beyond = Reaching(rows=2, columns=1025, opens=True)
    assert brief(beyond) == tuple(Variation)
    assert not long(beyond)
    assert not brief(replace(beyond, columns=1000))


def test_another_dtype_is_looked_at_around_the_shapes_of_the_first():
    asked = []

    def looking(size):
        def look(points):
            asked.extend(points)
            wide = (columns * size > 65536 and rows > 128 for rows, columns, _ in points)
            return [Planned(features=frozenset({"loops" if beyond else "tile"})) for beyond in wide]

        return look

    first = cover(seen_around(looking(2), lambda _: True, 1, lambda: ()))
    before = len(asked)
    assert (129, 32769, 0) in asked
    second = seen_around(looking(4), lambda _: True, 1, lambda: (), first)
    assert len(asked) - before < before / 2
    assert second[129, 16384, 0].features != second[129, 16385, 0].features


def test_what_only_shapes_beyond_the_limit_reach_is_named_with_its_price_and_never_run():
    def look(points):
        return [
            Planned(features=frozenset({"usual", *(["huge"] if r * c > 1 << 24 else [])}))
            for r, c, _ in points
        ]

    known = seen_around(look, lambda _: True, 1, lambda: ())
    chosen = cover(known)
    (dear,) = too_dear(known, chosen)
    assert dear.rows * dear.columns > 1 << 24
    assert dear.seconds > CASE_SECONDS
    made = steering((), [*chosen, dear], cases=100, seconds=math.inf)
    assert made.left_out == (dear,)
    assert f"{dear}: about {math.ceil(dear.seconds)} s" in made.note("--budget deep")


@pytest.mark.parametrize(
    ("grid", "found"),
    [
        (lambda rows, columns: rows, (65536, 1)),
        (lambda rows, columns: -(-rows // 4), (262141, 1)),
        (lambda rows, columns: -(-columns // 1024), None),
        (lambda rows, columns: min(rows, 65535), None),
        (lambda rows, columns: 1, None),
    ],
)
def test_the_least_shape_is_found_whose_grid_no_device_launches(grid, found):
    def look(points):
        return [
            Planned(features=frozenset({"kernel"}), grids={"kernel": (1, grid(*point[:2]), 1)})
            for point in points
        ]

    known = seen_around(look, lambda point: True, 1, tuple)
    wide = too_wide(known)
    assert len(wide) == (found is not None)
    for shape in wide:
        assert grid(shape.rows, shape.columns) > MAX_GRID_YZ
        assert shape.columns == 1
        assert found[0] <= shape.rows < 1.01 * found[0]
    refusing = {
        p: Planned(features=seen.features, grids=seen.grids, refused="no") for p, seen in known.items()
    }
    assert too_wide(refusing) == []


def test_the_smallest_shape_of_each_kind_of_error_is_found_and_none_of_a_refusal():
    def look(rows, columns):
        if columns > 5000:
            return Planned(refused=f"IndexError: {columns} of them", fails=True)
        if rows > 7000:
            return Planned(refused="TypeError: rows", fails=rows * columns < 100_000)
        return Planned(refused="ValueError: few" if columns < 3 else "", features=frozenset({"kernel"}))

    known = seen_around(lambda points: [look(*p[:2]) for p in points], lambda _: True, 1, tuple)
    found = [(shape.rows, shape.columns) for shape in failing(known)]
    assert found == [(1, 5001), (7001, 1)]


def test_no_point_beyond_what_grids_have_is_looked_at_outside_the_domain():
    def look(points):
        asked.extend(points)
        return [
            Planned(features=frozenset({"kernel"}), grids={"kernel": (1, -(-point[0] // 4), 1)})
            for point in points
        ]

    asked = []
    assert too_wide(seen_around(look, lambda point: point[0] <= 200_000, 1, tuple)) == []
    assert max(rows for rows, _, _ in asked) <= 200_000


def test_behind_a_step_with_an_even_extent_one_that_leaves_a_block_full_in_part_is_wanted():
    """Four rows at once from 4096 on: 4096 itself is a multiple of four."""

    def features(rows, columns, variant):
        return {"kernel", f"kernel: ROWS {'n' if rows >= 4096 else '1'}"}

    shapes, _ = swept(features)
    assert {4095, 4096, 4097} <= {rows for rows, _ in extents(shapes)}


def test_behind_a_step_with_an_odd_extent_nothing_more_is_wanted():
    def features(rows, columns, variant):
        return {"kernel", f"kernel: ROWS {'n' if rows > 4096 else '1'}"}

    shapes, _ = swept(features)
    assert not {4098, 4099} & {rows for rows, _ in extents(shapes)}


def test_where_something_depends_on_rows_very_many_of_them_are_tried():
    def features(rows, columns, variant):
        return {"kernel", f"kernel: each {'n' if rows > 512 else '1'}"}

    assert max(rows for rows, _ in extents(swept(features)[0])) >= 33_001


@pytest.mark.parametrize("limit", [1, 40_000])
def test_where_only_one_row_differs_or_very_many_are_tried_anyway_there_are_no_others(limit):
    def features(rows, columns, variant):
        return {"kernel", f"kernel: each {'n' if rows > limit else '1'}"}

    assert 33_001 not in {rows for rows, _ in extents(swept(features)[0])}


def test_a_number_that_some_extents_alone_are_given_is_reached():
    def features(rows, columns, variant):
        odd = rows % 13 == 0 and columns >= 1500
        return {"kernel", f"kernel: eps has the value {2e-5 if odd else 1e-5}"}

    found = extents(swept(features, literals={13, 1500})[0])
    assert any(rows % 13 == 0 and columns >= 1500 for rows, columns in found)


def test_a_number_that_follows_from_extents_adds_no_shapes():
    def plain(rows, columns, variant):
        return {"kernel"}

    def divided(rows, columns, variant):
        return {"kernel", f"kernel: inverse has the value {1 / columns}"}

    assert swept(divided)[0] == swept(plain)[0]


def test_seven_tiles_are_among_the_lengths_that_are_looked_at():
    lengths = {columns for _, columns, _ in ladder(1)}
    assert {7 * 1024 - 1, 7 * 16384 - 1} <= lengths
