"""The picture of bandwidth against bounds and errors shows everyone at the figures that were measured."""

import json
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from verifier import machine

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "benchmarks" / "results" / "h100" / "pareto.json"
PICTURE = ROOT / "docs" / "pictures" / "pareto.svg"


@pytest.fixture
def pareto(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import pareto

    yield pareto
    for name in ("pareto", "kernels", "kernel_contenders", "kernel_grids", "kernel_report"):
        sys.modules.pop(name, None)


def contender(pareto, name):
    return next(one for one in pareto.contenders(replace(pareto.WORK, coarse=False), ()) if one.name == name)


def test_errors_are_those_of_the_rows_and_bounds_those_of_the_declaration(pareto):
    pytest.importorskip("triton")
    work = replace(pareto.WORK, rows=8, columns=300)
    plain, compensated = (
        contender(pareto, f"layer_norm_{name}_triton") for name in ("two_pass", "compensated")
    )
    shifted = replace(plain, call=lambda given: plain.call(given) + 1e-3)
    with machine.session():
        near, far = (pareto.errors_of(plain, work, mean, "cpu") for mean in pareto.MEANS)
        better = pareto.errors_of(compensated, work, 1e4, "cpu")
        wrong = pareto.errors_of(shifted, work, 0.0, "cpu")
    for found in (near, far, better):
        assert 0 < found["observed"] <= found["bound"]
    assert better["bound"] < far["bound"] / 100
    assert better["observed"] < far["observed"] / 100
    assert abs(wrong["observed"] - 1e-3) <= 2 * near["observed"]
    assert wrong["bound"] == near["bound"] < 1e-4


def test_who_declares_nothing_has_no_bound(pareto):
    torch_s = contender(pareto, "torch")
    found = pareto.errors_of(torch_s, replace(pareto.WORK, rows=8, columns=300), 0.0, "cpu")
    assert found["bound"] is None
    assert 0 < found["observed"] < 1e-5


def test_without_a_device_nothing_is_measured(pareto, tmp_path, capsys):
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    assert pareto.main(["--out", str(tmp_path / "pareto.json")]) == 2
    assert "no CUDA device" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_picture_of_the_readme_shows_what_was_measured(pareto, tmp_path):
    pytest.importorskip("matplotlib")
    document = json.loads(MEASURED.read_text(encoding="utf-8"))
    places = document["places"]
    assert {one["kind"] for one in places} == set(pareto.COLOURS)
    for one in places:
        assert len(one["errors"]) == len(pareto.MEANS)
        assert all(e["bound"] is None or e["observed"] <= e["bound"] for e in one["errors"])
    again = tmp_path / "pareto.svg"
    pareto.main(["--picture", str(again), str(MEASURED)])
    drawn, shown = (comments(path) for path in (again, PICTURE))
    assert drawn == shown
    assert all(any(one["name"] in words for words in shown) for one in places)


def comments(path):
    """Return what the picture says: matplotlib writes each text, drawn as outlines, into a comment."""
    text = path.read_text(encoding="utf-8")
    assert ET.fromstring(text).tag.endswith("svg")
    return [" ".join(words.split()) for words in re.findall(r"<!--(.*?)-->", text, re.DOTALL)]
