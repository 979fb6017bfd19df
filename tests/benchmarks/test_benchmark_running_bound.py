"""The benchmark of the running bound measures what its page says, on a few small cases."""

import sys
from pathlib import Path

import pytest

from verifier.execution import Runner
from verifier.subjects.load_file import builtin_folder

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "running-bound.md").read_text(encoding="utf-8")

pytest.importorskip("triton", reason="running bounds are tried on Triton kernels; Triton is not installed")


@pytest.fixture
def measuring(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import running_bound

    monkeypatch.setattr(running_bound, "CASES", 2)
    monkeypatch.setattr(running_bound, "LONG", 300)
    monkeypatch.setattr(running_bound, "WRONG_COLUMNS", (4097,))
    monkeypatch.setattr(running_bound, "SEEDS", (0,))
    yield running_bound
    sys.modules.pop("running_bound", None)


@pytest.fixture
def runner():
    with Runner("machine") as opened:
        yield opened


def cells(lines):
    rows = (line.strip("|").split("|") for line in "\n".join(lines).splitlines() if line.startswith("| "))
    return [[cell.strip() for cell in row] for row in rows]


def test_errors_stay_below_the_running_bound(measuring, runner):
    head, *rows = cells(measuring.against_errors([builtin_folder() / "rms_norm_triton.py"], runner))
    assert head == ["result", "variance", "float16 and bfloat16", "float32"]
    assert {row[0] for row in rows} == {"output", "rstd", "grad_input", "grad_weight"}
    for row in rows:
        for cell, kernels in zip(row[2:], ("(2)", "(1)"), strict=True):
            *figures, count = cell.replace(" to ", " ").split()
            assert count == kernels
            assert all(0.0 < float(figure) <= 1.0 for figure in figures)
    assert f"| {' | '.join(head)} |" in PAGE


def test_the_bound_of_a_declared_tree_is_nearer_than_that_of_any_order(measuring, runner):
    head, *rows = cells(measuring.against_theorems(runner))
    assert [row[0] for row in rows] == ["output", "grad_input", "grad_weight"]
    for _, narrow, narrow_any, single, single_any in rows:
        assert 0.0 < float(narrow) <= float(narrow_any)
        assert 0.0 < float(single) < float(single_any)
    assert f"| {' | '.join(head)} |" in PAGE


def test_a_wrong_divisor_is_beyond_the_running_bound_alone(measuring, runner):
    head, row = cells(measuring.on_wrong_n(runner))
    assert row[:2] == ["4097", "0"]
    assert float(row[2]) < 1.0 < float(row[3])
    assert f"| {' | '.join(head)} |" in PAGE


def test_the_page_names_the_script():
    assert "python benchmarks/running_bound.py" in PAGE
