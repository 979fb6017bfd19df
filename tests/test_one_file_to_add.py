"""One file is all there is to add in each direction: an audit uses those of tests/extension."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from strategies import registry

EXTENSION = Path(__file__).parent / "extension"
KERNELS = EXTENSION / "kernels" / "first_axis_norms.py"
PEAKS = KERNELS.with_name("peak_norms.py")


@pytest.fixture(scope="module")
def python(warm_python):
    """Return a function that runs Python with a folder of extensions."""

    def run(*arguments, folder, extension=EXTENSION):
        environment = {**os.environ, registry.VARIABLE: str(extension)}
        return warm_python.run(*arguments, folder=folder, environment=environment)

    return run


@pytest.fixture(scope="module")
def lines(tmp_path_factory, python):
    """The lines of one audit on the extension's backend, by subject and check."""
    folder = tmp_path_factory.mktemp("audit")
    wanted = [f"--check={name}" for name in ("forward_error", "gradient", "odd")]
    ended = python(
        *("-m", "verifier", "audit", str(KERNELS), str(PEAKS), "--backend=eager_again"),
        *("--json=report.json", *wanted),
        folder=folder,
    )
    assert ended.returncode == 1, ended.stderr  # of the second kernel of each file there are findings
    report = json.loads((folder / "report.json").read_text())
    return {(line["subject"], line["check"]): line for line in report["lines"]}


@pytest.mark.parametrize("check", ["forward_error", "gradient", "odd"])
def test_an_audit_uses_op_algorithm_and_backend(lines, check):
    line = lines["first_axis_norm", check]
    assert line["verdict"] == "PASS"
    assert (line["backend"], line["variance"]) == ("eager_again", "two_pass_again")


def test_the_hazards_of_one_tensor_and_of_several_are_tried(lines):
    """The check passes only if it has seen both of them."""
    assert lines["first_axis_norm", "odd"]["untried"] == []


def test_an_op_may_bring_the_oracle_a_problem_of_its_own(lines):
    assert lines["peak_norm", "forward_error"]["verdict"] == "PASS"
    assert lines["peak_norm_of_reciprocal", "forward_error"]["verdict"] == "FAIL"


@pytest.mark.parametrize("check", ["forward_error", "odd"])
def test_what_is_wrong_is_found(lines, check):
    assert lines["first_axis_norm_and_more", check]["verdict"] == "FAIL"


def test_without_the_folder_there_is_nothing_of_it(warm_python):
    ended = warm_python.run(
        *("-m", "verifier", "audit", str(KERNELS)),
        folder=EXTENSION.parents[1],
        environment={name: value for name, value in os.environ.items() if name != registry.VARIABLE},
    )
    assert ended.returncode == 2
    assert "unknown guarantees 'odd'" in ended.stderr


PTX = """
.version 8.6
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p)
{
.reg .b64 %a; .reg .f32 %f;
ld.param.u64 %a, [p]; ld.global.f32 %f, [%a];
add.f32 %f, %f, %f; mul.f32 %f, %f, %f; st.global.f32 [%a], %f;
ret;
}
"""
LAUNCH = f"""
import torch
from verifier.machine import launch_ptx, session

x = torch.ones(1)
with session(arithmetic="steps", sanitize={{"every_access"}}) as opened:
    launch_ptx({PTX!r}, "k", (1,), (1,), 0, [x])
    from verifier.machine.sanitizers.every_access import COUNTS
    print(opened.slots.get(x).tolist(), COUNTS)
"""


def test_the_machine_uses_arithmetic_and_sanitizer(tmp_path, python):
    """Two operations made what is stored; a load and a store were seen."""
    ended = python("-c", LAUNCH, folder=tmp_path)
    assert ended.stdout == "[2] [2]\n", ended.stderr


@pytest.mark.parametrize("named", ["arithmetic='steps'", "sanitize={'every_access'}"])
def test_without_the_folder_the_machine_has_neither(named, tmp_path, python):
    machine = LAUNCH.replace('arithmetic="steps", sanitize={"every_access"}', named)
    ended = python("-c", machine, folder=tmp_path, extension="")
    assert ended.returncode == 1
    assert re.search(r"ValueError: no (arithmetic|sanitizer) is called '?(steps|every_access)", ended.stderr)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A package of one module, `first`, and a folder of extensions to it."""
    package = tmp_path / "home_of_modules"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "first.py").write_text('NAME = "one"')
    extension = tmp_path / "extension" / "home_of_modules"
    extension.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(registry.VARIABLE, str(extension.parent))
    yield extension
    for name in [name for name in sys.modules if name.split(".")[0] == "home_of_modules"]:
        del sys.modules[name]


def test_modules_of_an_extension_stand_beside_the_own(home):
    (home / "second.py").write_text("class OP:\n    name = 'two'\nNAME = OP")
    (home / "helper.py").write_text("ELSE = 1")
    found = registry.registry("home_of_modules", "NAME")
    assert {name: module.__name__ for name, module in found.items()} == {
        "one": "home_of_modules.first",
        "two": "home_of_modules.second",
    }
    assert registry.imported("home_of_modules.helper").ELSE == 1


def test_modules_of_other_packages_are_imported_as_they_are(home, tmp_path, monkeypatch):
    (tmp_path / "alone_for_a_test.py").write_text("NUMBER = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.imported("alone_for_a_test").NUMBER == 7
    assert registry.imported("json.decoder").__name__ == "json.decoder"


def test_what_a_text_defines_is_known_without_running_it(home):
    (home / "second.py").write_text('NAME: str = "two"\n1 / 0')
    (home / "third.py").write_text("NAMES = 1\nif NAMES == 2:\n    NAME = 1")
    assert registry.names_defining("home_of_modules", "NAME") == ("first", "second")


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("first.py", "", r"home_of_modules\.first is .*home_of_modules/first\.py"),
        ("second.py", 'NAME = "one"', r"'one' is the name of .*home_of_modules/first\.py"),
        ("second.py", "1 / 0", "ZeroDivisionError: division by zero"),
    ],
    ids=["a file's name is taken", "a name is taken", "it cannot be imported"],
)
def test_an_extension_that_cannot_be_used_is_named(home, file, text, words):
    (home / file).write_text(text)
    with pytest.raises(registry.ExtensionError, match=rf"^{re.escape(str(home / file))}: .*{words}"):
        registry.registry("home_of_modules", "NAME")


@pytest.mark.parametrize("named", ["extension", "/nowhere/at/all"])
def test_a_folder_that_is_none_is_refused(home, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where extension/ is one, but no child process need stand
    monkeypatch.setenv(registry.VARIABLE, named)
    with pytest.raises(registry.ExtensionError, match=f"{named} is no folder named by an absolute path"):
        registry.registry("home_of_modules", "NAME")


def test_the_command_line_says_so_in_a_line(tmp_path, python):
    ended = python("-m", "verifier", "list", folder=tmp_path, extension="nowhere")
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "nowhere is no folder" in ended.stderr
