"""The generated reference is what the code would write today."""

import re
from pathlib import Path

import pytest

from verifier.bounds_by_algorithm import COLUMNS, DTYPES, case_of, figures, subjects
from verifier.documentation import PAGES, is_current, kernels_page, proved_part, source_of
from verifier.loading import builtin_files, load_subjects
from verifier.runner import Runner

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
CELL = re.compile(r"(no theorem|\d\.\de[-+]\d\d), (\d\.\de[-+]\d\d)")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_current(name):
    kept = (REFERENCE / f"{name}.md").read_text(encoding="utf-8")
    assert is_current(name, kept), "run python -m verifier.documentation docs/reference"


def test_no_page_lies_about():
    assert {path.stem for path in REFERENCE.glob("*.md")} == set(PAGES)


def test_no_observed_error_exceeds_its_proved_bound():
    kept = (REFERENCE / "bounds-by-algorithm.md").read_text(encoding="utf-8")
    cells = CELL.findall(kept)
    # 6 kernels, 2 lengths, 3 results: 3 kappas in float32; the third is not in float16.
    assert len(cells) == len(subjects()) * len(COLUMNS) * 3 * (3 + 2)
    assert len(DTYPES) == 2
    proved = [(float(p), float(o)) for p, o in cells if p != "no theorem"]
    assert all(o <= p for p, o in proved)
    assert proved_part(kept) != kept
    assert not CELL.search(proved_part(kept))


def test_what_is_kept_is_what_the_machine_shows():
    case = case_of("float32", 1024, 1e2)
    with Runner("machine") as runner:
        subject = next(s for s in subjects() if s.name == "layer_norm_textbook_triton")
        seen = figures(subject, case, runner)
    for figure in seen.values():
        assert 0 < figure.observed <= figure.proved
    # The textbook variance loses kappa^2: its rstd is provably worse than its mean is, and visibly so.
    assert seen["rstd"].observed > 10 * seen["mean"].observed


def test_every_subject_has_its_source_and_every_defect_its_case():
    page = "\n".join(kernels_page())
    for subject in (s for file in builtin_files() for s in load_subjects(file)):
        assert f"| {subject.name} | {subject.op} | {source_of(subject)} |" in page
        if subject.language != "torch":
            assert "control" not in source_of(subject)
            assert ("as published" in source_of(subject)) == bool(subject.known_defects)
    assert "none stored" not in page
