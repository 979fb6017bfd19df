"""What the README shows is what happens: its declaration, and its commands with less time."""

import re
import shlex
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from verifier.records.files import cache_folder

ROOT = Path(__file__).parents[2]
CACHES = cache_folder("").parent
"""Those of the tests: a hash of Triton's own files lies there, which takes a second to make."""
README = (ROOT / "README.md").read_text(encoding="utf-8")
OWN_KERNEL = README.split("## Your own kernel")[1].split("\n## ")[0]
COMMANDS = re.findall(r"^(?:norm-verifier|pytest) .*", OWN_KERNEL.split("```")[1], re.MULTILINE)
LESS = {
    "describe": [],
    "audit": ["--check", "forward_error", "--workers", "1"],
    "fuzz": ["--check", "forward_error"],
    "bounds": [],
    "pytest": ["-k", "forward_error and float32", "-p", "no:cacheprovider"],
    "mutate": ["--sample", "1", "--check", "forward_error", "--workers", "1"],
}
"""What is added to each command, so that it ends within seconds."""


@pytest.fixture
def folder(tmp_path):
    (declaration,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "my_kernel.py").write_text(declaration)
    return tmp_path


@pytest.fixture
def run(folder, warm_python):
    """Return a function that runs a command in that folder, where the kernel lies."""
    return lambda words: ran(folder, words, warm_python)


def ran(folder, words, warm_python):
    words = [re.sub(r"^\d+m$", "4s", word) for word in words]
    words = ["0" if word == "auto" else word for word in words]
    installed = any(p.name == "norm-verifier" for p in entry_points(group="pytest11"))
    tests = ["-m", "pytest", *([] if installed else ["-p", "verifier.commands.pytest_plugin"])]
    program = ["-m", "verifier"] if words[0] == "norm-verifier" else tests
    environment = {
        "PYTHONPATH": f"{ROOT}",
        "PATH": "/usr/bin:/bin",
        "OMP_NUM_THREADS": "1",
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(CACHES),
    }
    return warm_python.run(*program, *words[1:], folder=folder, environment=environment)


def test_every_kind_of_command_is_shown():
    assert {words.split()[1] if words.startswith("norm") else "pytest" for words in COMMANDS} == set(LESS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_ends_well_on_the_declared_kernel(command, folder, run):
    words = shlex.split(command, comments=True)
    kind = words[1] if words[0] == "norm-verifier" else "pytest"
    ended = run([*words, *LESS[kind]])
    statuses = {0, 1} if kind == "mutate" else {0}  # 1: that mutant survives so short an audit
    assert ended.returncode in statuses, ended.stdout + ended.stderr
    if kind == "mutate":
        assert "1 of" in ended.stdout
    if kind in {"audit", "fuzz"}:
        assert "PASS" in ended.stdout
        assert "FAIL" not in ended.stdout
    if kind == "describe":
        assert "@subject(" in ended.stdout
        assert "two_pass" in ended.stdout or "welford" in ended.stdout
    if kind == "bounds":
        assert "welford" in ended.stdout
        assert (folder / "bounds.png").read_bytes().startswith(b"\x89PNG")
    if kind == "pytest":
        assert "1 passed" in ended.stdout


def test_the_list_names_what_the_declaration_may_say(run):
    ended = run(["norm-verifier", "list"])
    assert ended.returncode == 0
    for word in ("layer_norm", "two_pass", "forward_error", "machine", "layer_norm_two_pass_triton"):
        assert word in ended.stdout


def test_a_wrong_variance_over_n_minus_one_fails_as_shown(run):
    """The failure that the README prints, line by line; an ellipsis stands for what it leaves out."""
    shown = README.split("## What a failure looks like")[1].split("```\n")[1]
    kernel = ROOT / "tests" / "faulty_kernels" / "variance_over_n_minus_one.py"
    words = ["norm-verifier", "audit", str(kernel), "--check", "forward_error", "--dtype", "float32"]
    ended = run([*words, "--workers", "1"])
    assert ended.returncode == 1
    for line in shown.splitlines():
        assert re.search(".*".join(map(re.escape, line.split("..."))), ended.stdout), ended.stdout


def test_the_declared_kernel_with_that_mistake_fails_too(folder, run):
    kernel = (folder / "my_kernel.py").read_text()
    biased = "x.square().mean(-1, keepdim=True)"
    planted = kernel.replace(biased, f"{biased} * x.shape[-1] / (x.shape[-1] - 1 + (x.shape[-1] == 1))")
    assert planted != kernel
    (folder / "my_kernel.py").write_text(planted)
    words = ["norm-verifier", "audit", "my_kernel.py", "--check", "forward_error", "--dtype", "float32"]
    ended = run([*words, "--workers", "1"])
    assert ended.returncode == 1
    assert "provably beyond the rounding-error bound" in ended.stdout
    assert "replay       norm-verifier replay" in ended.stdout
