"""Every known defect of a library is confirmed by other means, and the page has no other findings."""

import importlib
import re
from importlib.util import find_spec

import pytest
from import_graph import ROOT

from verifier.records import witness
from verifier.subjects.libraries import library_files

FOLDER = next(iter(library_files().values())).parent / "witnesses"
WITNESSES = [
    file.with_name(f"{file.name}#{name}")
    for file in sorted(FOLDER.glob("*.json"))
    for name in witness.read(file)
]


@pytest.fixture
def libraries(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("libraries")


@pytest.mark.parametrize("path", WITNESSES, ids=lambda path: path.name)
def test_a_witness_is_confirmed_by_other_means(libraries, path):
    if "#undefined-lanes" in path.name:  # its source is read
        package = next(
            found for begin, (found, _) in libraries.SOURCES.items() if path.name.startswith(f"{begin}_")
        )
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    assert re.search("torch|mpmath", libraries.confirmed(path))


def test_no_witness_names_a_folder_of_the_machine_that_made_it():
    for file in {path.with_name(path.name.partition("#")[0]) for path in WITNESSES}:
        assert not re.search(r"source /", file.read_text(encoding="utf-8")), file


def test_an_offset_that_is_no_product_in_32_bits_is_not_confirmed(libraries):
    path = next(p for p in WITNESSES if "#rows-in-32-bits" in p.name)
    case, document = witness.load(path)
    said = document["message"]
    for message in (said.replace("offset -", "offset -1"), said.replace("block (1", "block (2"), "no offset"):
        with pytest.raises(libraries.UncheckedError, match=r"times no stride|it says something else"):
            libraries.CHECKS["rows-in-32-bits"](case, {**document, "message": message})


def test_what_nothing_confirms_is_not_printed(libraries, tmp_path, capsys):
    path = WITNESSES[0]
    with pytest.raises(libraries.UncheckedError, match="nothing here confirms it"):
        libraries.confirmed(path.with_name(path.name.replace("#", "#other-")))
    group = next(p for p in WITNESSES if "#sums-through-bfloat16" in p.name)
    case, document = witness.load(group)
    with pytest.raises(libraries.UncheckedError, match="rounded to bfloat16"):
        libraries.CHECKS["sums-through-bfloat16"](
            case, {**document, "seen": "grad_bias[1] is 1.5, exactly 1.25"}
        )
    overflowing = next(p for p in WITNESSES if "#sums-overflow" in p.name)
    small, document = witness.load(overflowing)
    small.tensors["input"].fill_(1.0)
    with pytest.raises(libraries.UncheckedError, match="no sum overflows: the variance is"):
        libraries.CHECKS["sums-overflow"](small, document)
    report = tmp_path / "report.json"
    report.write_text('{"libraries": [], "lines": [], "findings": []}')
    assert libraries.main([str(report), "--out", str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text().startswith("# Norms of installed libraries")


@pytest.mark.parametrize(
    ("verdicts", "shown"),
    [
        (("PASS", "SKIPPED"), "PASS"),
        (("PASS", "UNDECIDED"), "UNDECIDED: modes"),
        (("FAIL", "UNDECIDED"), "FAIL; UNDECIDED: modes"),
    ],
)
def test_a_check_that_is_undecided_is_named_beside_the_verdict(libraries, verdicts, shown):
    lines = [
        {
            "subject": "a", "dtype": "float32", "check": check, "verdict": verdict, "outputs": {},
            "unexpected": int(verdict == "FAIL"), "known": 0,
        }
        for check, verdict in zip(("finite", "modes"), verdicts, strict=True)
    ]  # fmt: skip
    report = {"subjects": [{"subject": "a", "op": "rms_norm"}], "reach": [], "lines": lines}
    assert [row[3] for row in libraries._rows(report)] == [shown]


def test_what_the_page_tells_to_replay_is_there():
    text = (ROOT / "docs" / "libraries.md").read_text(encoding="utf-8")
    replayed = re.findall(r"norm-verifier replay '([^']+)'", text)
    assert replayed
    assert len(replayed) == text.count("- minimal case: ") == text.count("- by other means: ")
    for one in replayed:
        file, _, name = one.partition("#")
        assert name in witness.read(ROOT / file)
