"""The generated reference is what the code would write today."""

import re
from pathlib import Path

import pytest

from verifier.commands.bounds_page import COLUMNS, DTYPES, case_of, figures, subjects
from verifier.commands.reference_pages import PAGES, is_current, kernels_page, proved_part, source_of
from verifier.execution import Runner
from verifier.subjects.load_file import builtin_files, load_subjects

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
CELL = re.compile(r"(no theorem|\d\.\de[-+]\d\d), (\d\.\de[-+]\d\d)")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_current(name):
    kept = (REFERENCE / f"{name}.md").read_text(encoding="utf-8")
    assert is_current(name, kept), "run python -m verifier.commands.reference_pages docs/reference"


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
    assert "none stored" not in page


def test_names_and_sources_tell_published_from_corrected():
    subjects = [s for file in builtin_files() for s in load_subjects(file)]
    sources = {}
    for subject in subjects:
        control = subject.name == f"{subject.op}_torch"
        assert (subject.source is None) == control
        if subject.source is not None:
            assert (
                subject.source.as_published == bool(subject.known_defects) == ("_published_" in subject.name)
            )
            assert subject.source.as_published or subject.source.changed != "nothing"
            told = (subject.source.author, subject.source.url, subject.source.licence)
            assert sources.setdefault(subject.source.title, told) == told
