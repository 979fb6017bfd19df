"""The workflow and the hook that the guide to CI shows do what it says of them, when their lines are run."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

CI = (Path(__file__).parents[2] / "docs" / "how-to" / "ci.md").read_text(encoding="utf-8")
WORKFLOW, HOOKS = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", CI, re.DOTALL))
QUICK = ("--check", "forward_error", "--workers", "1")
KERNEL = """
@subject(**DECLARED, domain=Domain(max_abs=1e15, max_kappa=1e3))
def {name}(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps) * {factor}
"""


@pytest.fixture(params=[("good", 1), ("wrong", 1.01)], ids=["right", "wrong"])
def kernel(request, kernel_file):
    name, factor = request.param
    return name, kernel_file(KERNEL.format(name=name, factor=factor), name="my_kernel.py")


def test_the_workflow_audits_and_shows_what_it_found(kernel, command, tmp_path, monkeypatch):
    name, _ = kernel
    (job,) = WORKFLOW["jobs"].values()
    installs, audits = (step["run"] for step in job["steps"] if "run" in step)
    assert re.fullmatch(r'pip install "PATH/TO/norm-verifier\[\w+\]"', installs)
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    program, *words = shlex.split(audits)
    assert program == "norm-verifier"
    status, out, _ = command(*words, *QUICK)
    assert status == (name == "wrong")
    assert ("::error file=my_kernel.py,line=" in out) == (name == "wrong")
    assert summary.read_text().startswith("# ❌ FAIL" if name == "wrong" else "# ✅ PASS")
    kept = [step["with"] for step in job["steps"] if step.get("if") == "always()"]
    (uploaded,) = [given["path"] for given in kept if "path" in given]
    assert (tmp_path / uploaded / "index.html").is_file()
    (scanned,) = [given["sarif_file"] for given in kept if "sarif_file" in given]
    results = json.loads((tmp_path / scanned).read_text())["runs"][0]["results"]
    assert len(results) == (name == "wrong")
    assert job["permissions"]["security-events"] == "write"


def test_every_action_of_the_workflow_has_a_version_and_a_true_key():
    assert True in WORKFLOW  # YAML 1.1 reads `on` so, and GitHub does not
    uses = [step["uses"] for step in WORKFLOW["jobs"]["audit"]["steps"] if "uses" in step]
    assert all(re.fullmatch(r"[\w-]+/[\w/-]+@v\d+", one) for one in uses)
    assert len(uses) == 5


def test_the_hook_lets_a_right_kernel_pass_and_refuses_a_wrong_one(kernel, command):
    name, file = kernel
    (hook,) = HOOKS["repos"][0]["hooks"]
    assert re.search(hook["files"], file.name)
    assert not re.search(hook["files"], "my_kernel_py")
    program, *words = shlex.split(hook["entry"])
    assert program == "norm-verifier"
    assert hook["language"] == "system"
    status, out, _ = command(*words, "--workers", "1", file.name)  # as pre-commit does: names come last
    assert status == (name == "wrong")
    assert ("replay" in out) == (name == "wrong")
