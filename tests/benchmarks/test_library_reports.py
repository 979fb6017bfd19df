"""Reports on libraries are kept, and a later one replaces what is told of its norms and dtypes alone."""

import importlib
import json

import pytest
from import_graph import ROOT


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.fixture
def reports():
    return importlib.import_module("library_reports")


@pytest.fixture
def libraries():
    return importlib.import_module("libraries")


def line(subject, dtype, verdict):
    told = {"subject": subject, "check": "finite", "dtype": dtype, "backend": "machine", "verdict": verdict}
    return told | {"unexpected": False, "known": False, "outputs": {}, "skipped": "", "notes": ["long"]}


def report(*lines, version="1.0"):
    norms = dict.fromkeys(one["subject"] for one in lines)
    place = {"function": "f", "file": "a.py", "line": 3, "cause": "seconds", "why": "beyond the budget"}
    reach = {"functions": {"ran": 1, "of": 2}, "loops": {"ran": 0, "of": 0}, "blocks": ["many"] * 100}
    library = {"distribution": "liger-kernel", "version": version, "package": "liger_kernel", "unreached": {}}
    return {
        "versions": {"triton": "3.9.0", "torch": "2.13.0", "norm-verifier": "0.1.0"},
        "subjects": [{"subject": name, "op": "layer_norm"} for name in norms],
        "libraries": [library | {"path": "kernels/libraries/liger.py"}],
        "lines": list(lines),
        "findings": [],
        "reach": [
            reach
            | {
                "subject": name,
                "lacking": [{**place, "kind": "function"}, {**place, "kind": "form", "line": 9}],
            }
            for name in norms
        ],
    }


def verdicts(reports):
    return {(one["subject"], one["dtype"]): one["verdict"] for report in reports for one in report["lines"]}


def test_a_later_report_counts_for_its_norms_and_dtypes_and_for_no_others(reports):
    older = report(line("a", "float32", "FAIL"), line("a", "float16", "PASS"), line("b", "float32", "PASS"))
    newer = report(line("a", "float32", "PASS"))
    found = reports.joined([older], [newer])
    assert len(found) == 2
    assert sum(len(one["lines"]) for one in found) == 3
    assert verdicts(found) == {
        ("a", "float32"): "PASS",
        ("a", "float16"): "PASS",
        ("b", "float32"): "PASS",
    }
    assert reports.joined([older], [older]) == [older]


def test_what_is_kept_makes_the_rows_that_the_whole_report_made(reports, libraries):
    whole = report(line("a", "float32", "FAIL"))
    kept = reports.trimmed(whole, "0123abcd")
    assert list(libraries._rows(kept)) == list(libraries._rows(whole))
    assert list(libraries._not_run(kept)) == list(libraries._not_run(whole))
    assert "many" not in json.dumps(kept)
    assert "long" not in json.dumps(kept)
    assert reports.trimmed(kept) == kept
    assert libraries._used(kept).endswith("at commit 0123abcd")


def test_files_are_read_again_as_they_were_written(reports, tmp_path):
    first = reports.updated(
        [report(line("a", "float32", "FAIL"))], {"liger-kernel": "aaaaaaaa"}, tmp_path / "kept"
    )
    reports.write(first)
    (path,) = first
    assert path.name == "liger-kernel-1.0.json.xz"
    assert reports.read(path) == first[path]
    others = [report(line("b", "float32", "PASS")), report(line("a", "float32", "PASS"), version="0.9")]
    second = reports.updated(others, {"liger-kernel 1.0": "bbbbbbbb"}, tmp_path / "kept")
    assert verdicts(second[path]) == {("a", "float32"): "FAIL", ("b", "float32"): "PASS"}
    assert [one["commit"] for one in second[path]] == ["bbbbbbbb", "aaaaaaaa"]
    assert len(second) == 2


def test_sections_of_releases_without_a_kept_report_stay(libraries):
    before = "# Norms\n\n## quack-kernels 0.6.5\n\nAs it was.\n\n## liger-kernel 1.0\n\nOld.\n"
    text = "\n\n".join(libraries.page([report(line("liger_softmax", "float32", "PASS"))], before))
    assert "## quack-kernels 0.6.5\n\nAs it was." in text
    assert "Old." not in text
    assert text.count("## liger-kernel 1.0") == 1
    assert "quack" not in text.partition("## ")[0].partition("audited nowhere")[2]


def test_a_report_names_files_of_the_repository_from_its_root_wherever_it_was_made(reports, tmp_path):
    one = report(line("a", "float32", "FAIL"))
    witness = "kernels/libraries/witnesses/a.json#lanes.memory.float32"
    one["findings"] = [
        {"case": f"/somewhere/else/{witness}", "replay": f"norm-verifier replay '/x/{witness}'"}
    ]
    file = tmp_path / "report.json"
    file.write_text(json.dumps(one), encoding="utf-8")
    (found,) = reports.read(file)
    assert found["findings"] == [{"case": witness, "replay": f"norm-verifier replay '{witness}'"}]
    reports.write({tmp_path / "kept.json.xz": [one]})
    assert reports.read(tmp_path / "kept.json.xz") == [found]
