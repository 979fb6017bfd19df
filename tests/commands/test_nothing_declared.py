"""Reports, gates, comparisons and fuzzing serve a kernel of which nothing is declared but its op."""

import json

import pytest
from short_sweeps import shorten_sweeps

from verifier.audit.request import BUDGETS

KERNEL = """
@subject(op="layer_norm", language="torch", dtypes=("float16",), differentiable=False)
def plain(input, weight=None, bias=None, eps=1e-5):
    out = right(input, weight, bias, eps)
    return out {change}
"""
LOST = "* float('nan') if input.shape[-1] > 1 else out"
QUICK = ("--check", "finite", "--workers", "1")


@pytest.fixture
def audited(command, kernel_file, tmp_path, monkeypatch):
    """Return a function that audits the kernel for a release: (status, output, its folder of a report)."""
    shorten_sweeps(monkeypatch)
    monkeypatch.setitem(BUDGETS, "quick", 3)

    def run(name, change, *options):
        file = kernel_file(KERNEL.format(change=change), folder=tmp_path / name)
        report = tmp_path / f"{name}-report"
        status, out, error = command("audit", file, *QUICK, "--release", "--report", report, *options)
        return status, out + error, report

    return run


def test_a_release_is_reported_gated_and_compared(audited, command):
    status, _, good = audited("good", "", "--require", "ulp=0.6,kappa=100")
    assert status == 0
    found = json.loads((good / "report.json").read_text())
    (measured,) = found["release"]["dtypes"]
    assert [one["output"] for one in measured["figures"]] == ["output"]
    assert {one["bound"] for one in measured["figures"]} == {None}
    assert (measured["variance"], measured["what_if"]) == ("none", [])
    assert "no theorem" in (good / "index.html").read_text()
    assert json.loads((good / "findings.sarif").read_text())["runs"][0]["results"] == []

    status, out, bad = audited("bad", LOST, "--require", "ulp=0.6,kappa=100")
    assert status == 1
    assert "not met: plain  float16  output: ulp=0.6,kappa=100 is required" in out
    (result,) = json.loads((bad / "findings.sarif").read_text())["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert (result["ruleId"], result["level"]) == ("finite", "error")
    lines = (bad.parent / place["artifactLocation"]["uri"]).read_text().splitlines()
    assert lines[place["region"]["startLine"] - 1].startswith("def plain(")
    assert "✗" not in (bad / "report.md").read_text()
    assert "# ❌ FAIL: plain" in (bad / "report.md").read_text()

    status, out, _ = command("compare", good / "report.json", bad / "report.json")
    assert status == 1
    assert "plain  finite  float16  eager: PASS became FAIL" in out
    assert "plain  float16  eager  output: worst was 0.5, is inf" in out
    assert command("compare", bad / "report.json", good / "report.json")[0] == 0


def test_it_is_fuzzed(command, kernel_file, tmp_path, monkeypatch):
    monkeypatch.setitem(BUDGETS, "quick", 4)
    file, out = kernel_file(KERNEL.format(change=LOST)), tmp_path / "fuzzing"
    words = ("--check", "finite", "--budget", "quick", "--workers", "1", "--out", out)
    status, said, _ = command("fuzz", file, *words)
    assert status == 1
    assert "FAIL  plain  finite  float16" in said
    (case,) = (out / "findings").glob("*.json")
    assert command("replay", case)[0] == 1
    status, _, _ = command("fuzz", kernel_file(KERNEL.format(change=""), folder=tmp_path / "good"), *words)
    assert status == 0
    assert list((out / "corpus").rglob("*.json"))
