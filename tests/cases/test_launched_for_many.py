"""Numbers of rows at which other code is launched than for fewer: each once, what is new at all first."""

from verifier.cases.launched_for_many import FEW_ROWS, MOST_BUILT, TELLING_COLUMNS, launched_for_many
from verifier.records.planned_launches import AGAIN, WRAPPER, Planned

ROWS = (1, 2, 3, 64, 2048, 4096)
COLUMNS = (3, 64, 128)


def planned(*constants, features=(), refused=""):
    built = frozenset({("kernel", constants)}) if constants else frozenset()
    return Planned(features=frozenset({"kernel", *features}), built=built, refused=refused)


def found(plan, rows=ROWS, columns=COLUMNS):
    chosen = launched_for_many({(r, c, 0): plan(r, c) for r in rows for c in columns})
    return [(shape.rows, shape.columns) for shape in chosen]


def test_the_first_number_of_rows_with_another_constant_is_taken_at_rows_that_show_sums():
    assert found(lambda rows, _: planned("TALL=4" if rows >= 2048 else "TALL=1")) == [(2048, 64)]


def test_each_further_length_with_a_form_of_its_own_comes_later():
    def plan(rows, columns):
        return planned(f"BLOCK={columns}", "TALL=4" if rows >= 2048 else "TALL=1")

    assert found(plan) == [(2048, 64), (2048, 3), (2048, 128)]


def test_what_is_launched_for_few_rows_too_is_no_news():
    assert found(lambda rows, columns: planned(f"BLOCK={columns}", f"LAST={rows > 4096}")) == []


def test_a_kernel_that_runs_for_many_rows_alone_is_met():
    assert found(lambda rows, _: planned(features=["split"] if rows >= 64 else [])) == [(64, 64)]


def test_that_an_extent_is_more_than_one_is_news_beyond_a_few_rows_alone():
    assert FEW_ROWS >= 2
    for most, shapes in ((1, []), (64, [(2048, 64)])):
        assert found(lambda r, _, most=most: planned(features=[f"grid x {'n' if r > most else 1}"])) == shapes


def test_statements_and_loops_that_turn_again_are_no_other_code():
    features = [f"kernel: loops over rows{AGAIN}", f"{WRAPPER}file:3"]
    assert found(lambda rows, _: planned(features=features if rows > 64 else [])) == []


def test_a_constant_that_is_the_number_of_rows_is_wanted_once():
    rows = range(1, MOST_BUILT + 5)
    assert found(lambda rows, _: planned(f"ROWS={rows}"), rows, [64]) == [(rows[-1], 64)]


def test_short_rows_are_taken_for_what_longer_ones_do_not_show():
    assert COLUMNS[0] < TELLING_COLUMNS
    assert found(lambda rows, columns: planned("A=2" if rows > 64 and columns == 3 else "A=1")) == [(2048, 3)]


def test_what_is_refused_shows_nothing():
    assert found(lambda rows, _: planned(f"A={rows >= 64}", refused="too many" if rows >= 64 else "")) == []


def test_another_layout_is_taken_only_for_what_the_plain_one_does_not_show():
    known = {(r, 64, v): planned(f"A={r > 64}") for r in ROWS for v in (0, 1)}
    assert [shape.variant for shape in launched_for_many(known)] == [0]
    known |= {(r, 64, 1): planned(f"A={r > 64}", f"B={r > 64}") for r in ROWS}
    assert [shape.variant for shape in launched_for_many(known)] == [0, 1]
