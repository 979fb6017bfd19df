"""The table and the plot of bounds say what the theorems say, observations apart."""

import math

import pytest

from verifier.bounds_table import plot, sweep, table
from verifier.trees import any_order, tree
from verifier.variance import algorithms

LANES = tree(lanes=64)
U = 2.0**-24


@pytest.fixture(scope="module")
def entries():
    return {e.algorithm: e for e in table(columns=512, kappa=100.0, dtype="float32", tree=LANES)}


def test_every_algorithm_has_an_entry_with_its_theorems(entries):
    assert set(entries) == set(algorithms())
    assert all(e.theorems for e in entries.values())


def test_observed_errors_stay_under_the_declared_bounds(entries):
    for e in entries.values():
        for name in ("variance", "rstd", "output"):
            bound, seen = getattr(e.declared, name), getattr(e.observed, name)
            assert math.isnan(bound) or 0.0 <= seen <= bound, (e.algorithm, name)


def test_declaring_the_tree_tightens_every_bound(entries):
    for e in entries.values():
        assert e.declared.variance * 3 < e.any_order.variance, e.algorithm


def test_the_textbook_loses_its_bits_first_and_the_corrected_last(entries):
    order = [entries[n].half_kappa for n in ("textbook", "welford", "two_pass", "two_pass_corrected")]
    assert order == sorted(order)
    assert order[0] < 30
    assert order[-1] > 1e6
    assert entries["textbook"].end_kappa < entries["two_pass"].end_kappa
    assert entries["rms"].end_kappa == math.inf


def test_observations_show_the_cancellation_of_the_textbook(entries):
    assert entries["textbook"].observed.variance > 1000 * entries["two_pass"].observed.variance


def test_half_precision_rows_end_where_the_dtype_cannot_hold_them():
    curve = sweep(columns=64, dtype="float16", tree=any_order())["two_pass"]
    assert 1e2 < curve[-1].kappa < 1e4
    assert all(math.isnan(p.observed.variance) for p in curve)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": 1}, "at least two columns"),
        ({"dtype": "float8"}, "unknown dtype"),
        ({"dtype": "bfloat16", "kappa": 1e6}, "cannot hold"),
    ],
)
def test_impossible_questions_are_refused(changes, message):
    asked = {"columns": 64, "kappa": 1.0, "dtype": "float32", "tree": LANES, **changes}
    with pytest.raises(ValueError, match=message):
        table(**asked)


def test_the_plot_is_written(tmp_path):
    written = plot(tmp_path / "bounds.png", columns=64, dtype="float32", tree=LANES)
    assert written.read_bytes().startswith(b"\x89PNG")
    assert written.stat().st_size > 20_000
