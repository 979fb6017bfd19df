"""The README's pictures are there, and the script that makes them still does."""

import importlib.util
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from chromium import NoChromiumError
from made_reports import KERNELS, made

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
SHOWN = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
MOST_BYTES = 150_000
SPEED = "pareto.svg"  # of benchmarks/pareto.py, and tested with it


@pytest.fixture(scope="module")
def make():
    spec = importlib.util.spec_from_file_location("docs_pictures_make", PICTURES / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def report(subjects_of, tmp_path):
    file = tmp_path / "report.json"
    file.write_text(json.dumps(made([subjects_of(KERNELS)["first"]])))
    return file


def test_the_readme_shows_pictures_that_are_there_and_small(make):
    assert {Path(path).name for _, path in SHOWN} == {make.HEAD, make.ERRORS, SPEED}
    for words, path in SHOWN:
        assert words
        assert 5000 < (ROOT / path).stat().st_size < MOST_BYTES
    assert (PICTURES / make.HEAD).read_bytes().startswith(b"\x89PNG")
    assert ET.parse(PICTURES / make.ERRORS).getroot().tag.endswith("svg")


def test_the_script_draws_errors_under_bounds(make, report):
    (measured, _) = json.loads(report.read_text())["release"]["dtypes"]
    drawn = make.errors_picture(measured)
    root = ET.fromstring(drawn)
    assert (root.get("width"), root.get("height")) != (None, None)
    assert "var(" not in drawn
    assert "bound of welford" in drawn
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", drawn)
    with pytest.raises(SystemExit, match="no errors"):
        make.errors_picture({**measured, "points": []})


def test_the_script_makes_both_pictures(make, report, tmp_path):
    try:
        make.main(["--report", str(report), "--out", str(tmp_path)])
    except NoChromiumError as missing:
        pytest.skip(str(missing))
    assert (tmp_path / make.ERRORS).stat().st_size > 5000
    picture = (tmp_path / make.HEAD).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert int.from_bytes(picture[16:20]) == 2 * make.WIDTH
    assert 300 < int.from_bytes(picture[20:24]) < 2000
