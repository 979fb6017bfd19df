"""The table and the plot of bounds say what the theorems say, observations apart."""

import math
from pathlib import Path

import numpy as np
import pytest

from verifier.arithmetic.row_statistics import exact_statistics
from verifier.arithmetic.trees.tree import any_order, pairwise, sequential, tree
from verifier.bounds import plot as bounds_plot
from verifier.bounds import table as bounds_table
from verifier.bounds.plot import plot
from verifier.bounds.table import hold_rows, observed, proved, reduction, sweep, table
from verifier.bounds.variance import algorithms

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "bounds.md"
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


@pytest.mark.parametrize("at_once", [1, 64 * 20, 2**21])
def test_a_sweep_is_the_same_however_many_rows_are_taken_at_once(at_once, monkeypatch):
    monkeypatch.setattr(bounds_table, "_AT_ONCE", at_once)
    claim = reduction("float32", LANES)
    curves = sweep(columns=64, dtype="float32", tree=LANES, with_observed=True)
    for step, kappa in ((0, 0.1), (6, 10.0), (15, 1e4)):
        statistics = exact_statistics(hold_rows(64, kappa, "float32", 0))
        for name, curve in curves.items():
            assert curve[step].kappa == kappa
            assert repr(curve[step].declared) == repr(proved(name, statistics, claim))
            assert repr(curve[step].observed) == repr(observed(name, statistics, claim))


def test_one_row_without_a_theorem_leaves_none_for_the_rows():
    rows = hold_rows(64, 1.0, "float32", 0)
    rows[2, 3] = math.inf
    found = proved("two_pass", exact_statistics(rows), reduction("float32", LANES))
    assert math.isnan(found.variance)
    assert math.isnan(found.rstd)
    assert math.isnan(found.output)


def test_orders_of_many_steps_are_bounded_and_not_simulated(monkeypatch):
    monkeypatch.setattr(bounds_table, "LONGEST_FOLLOWED", 20)
    rows = exact_statistics(hold_rows(64, 1.0, "float32", 0))
    for order, followed in ((sequential(), False), (any_order(), False), (pairwise(), True), (LANES, True)):
        claim = reduction("float32", order)
        assert proved("two_pass", rows, claim).variance < 1e-3
        assert math.isfinite(observed("two_pass", rows, claim).variance) == followed


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Draw a plot and return its file and its axes."""
    from matplotlib.figure import Figure

    figures = []
    save = Figure.savefig

    def recorded(figure, *given, **named):
        figures.append(figure)
        return save(figure, *given, **named)

    monkeypatch.setattr(Figure, "savefig", recorded)
    path = plot(tmp_path / "bounds.png", columns=64, dtype="float32", tree=LANES, name="some tree")
    return path, figures[0]


def test_the_plot_has_a_line_and_points_of_its_own_for_every_algorithm(drawn):
    path, figure = drawn
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000
    (legend,) = figure.legends
    assert {text.get_text().split()[0] for text in legend.get_texts()} == set(algorithms())
    (axes,) = figure.axes
    assert "some tree" in axes.get_title()
    curves = sweep(columns=64, dtype="float32", tree=LANES, with_observed=True)
    lines = {tuple(np.nan_to_num(line.get_ydata(), nan=-1.0)): line for line in axes.lines}
    looks = []
    for curve in curves.values():
        bounds = tuple(-1.0 if math.isnan(p.declared.variance) else p.declared.variance for p in curve)
        seen = tuple(p.observed.variance if p.observed.variance > 0.0 else -1.0 for p in curve)
        looks.append((lines[bounds].get_color(), lines[seen].get_marker()))
        assert len(bounds) == len(seen) > 20
    assert len({colour for colour, _ in looks}) > 5


def test_curves_that_lie_on_one_another_have_dashes_in_turn(drawn):
    _, figure = drawn
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) > 2][::2]
    styles = {name: line.get_linestyle() for name, line in zip(algorithms(), lines, strict=True)}
    dashed = {"textbook", "textbook_sums", "two_pass_corrected", "two_pass_corrected_mean"}
    assert dashed <= {name for name, style in styles.items() if style != "-"}
    assert styles["two_pass"] == "-"


def test_dashes_in_turn_leave_no_gap_and_no_overlap():
    for of in (2, 3, 5):
        covered = []
        for turn in range(of):
            offset, (on, pause) = bounds_plot._dashes(turn, of)
            covered += [(at - offset) % (on + pause) for at in range(int(on))]
        assert sorted(covered) == list(range(of * 5))


def rounded_like(shown, value):
    """Return the value with as many significant digits as are shown."""
    digits = sum(c.isdigit() for c in shown.partition("e")[0].lstrip("0."))
    return float(f"{value:.{digits - 1}e}")


@pytest.mark.parametrize("kappa", ["0", "1e3"])
def test_the_page_shows_what_the_table_says(kappa):
    text = PAGE.read_text(encoding="utf-8").split("## How large the bounds are")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "e" in line
    ]
    shown = {row[0]: row[2:] for row in rows if len(row) == 5 and row[1] == kappa}
    assert len(shown) >= 3
    rows = exact_statistics(hold_rows(8192, float(kappa), "float32", 0))
    any_, lanes = (reduction("float32", order) for order in (any_order(), tree(lanes=256)))
    for name, cells in shown.items():
        found = proved(name, rows, any_), proved(name, rows, lanes), observed(name, rows, lanes)
        for cell, errors in zip(cells, found, strict=True):
            assert float(cell) == rounded_like(cell, errors.variance / U), (name, cell)
