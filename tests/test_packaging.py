"""The built wheel and source archive hold what they should, and nothing that belongs to others."""

import os
import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from importlib.util import find_spec
from pathlib import Path

import pytest

from verifier.subjects.load_file import builtin_files

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build once; return (wheel, source archive)."""
    missing = [name for name in ("build", "hatchling") if find_spec(name) is None]
    if missing:
        assert "TOX_ENV_NAME" not in os.environ, f"the test environment lacks {missing}"
        pytest.skip(f"{' and '.join(missing)} not installed: nothing can be built")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    (wheel,), (archive,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, archive


@pytest.fixture(scope="module")
def names(built):
    with zipfile.ZipFile(built[0]) as wheel:
        return wheel.namelist()


def test_the_wheel_has_our_two_packages_and_no_other_top_level_name(names):
    top = {name.split("/")[0] for name in names}
    (info,) = (name for name in top if name.endswith(".dist-info"))
    assert top == {"verifier", "strategies", info}
    assert info.startswith("norm_verifier-")


def test_kernels_lie_inside_the_package_with_everything_they_need(names):
    inside = {
        name.removeprefix("verifier/kernels/") for name in names if name.startswith("verifier/kernels/")
    }
    here = {
        p.relative_to(ROOT / "kernels").as_posix()
        for p in (ROOT / "kernels").rglob("*")
        if p.is_file() and p.suffix in {".py", ".cu", ".cuh", ".json", ".bin"}
    }
    assert inside >= here
    assert "__init__.py" not in inside


def test_the_wheel_says_that_it_is_typed_and_brings_the_licence(names):
    assert "verifier/py.typed" in names
    assert "strategies/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_no_test_and_no_cache_is_in_the_wheel(names):
    assert not [n for n in names if "test" in Path(n).parts[0] or "__pycache__" in n or n.endswith(".pyc")]


def test_entry_points_are_the_command_and_the_plugin(built):
    with zipfile.ZipFile(built[0]) as wheel:
        (name,) = (n for n in wheel.namelist() if n.endswith("entry_points.txt"))
        points = ConfigParser()
        points.read_string(wheel.read(name).decode())
    assert dict(points["console_scripts"]) == {"norm-verifier": "verifier.__main__:main"}
    assert dict(points["pytest11"]) == {"norm-verifier": "verifier.commands.pytest_plugin"}


def test_the_source_archive_can_be_built_and_tested(built):
    with tarfile.open(built[1]) as archive:
        inside = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    for path in ("pyproject.toml", "tox.ini", "LICENSE", "README.md", "tests/README.md", "tests/conftest.py"):
        assert path in inside, path
    assert any(name.startswith("kernels/") for name in inside)
    assert not [n for n in inside if "__pycache__" in n or ".hypothesis" in n]


def test_an_installation_finds_its_kernels_and_answers(built, tmp_path):
    """Installed elsewhere, without the checkout on the path."""
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target"]
    subprocess.run([*install, str(tmp_path), str(built[0])], check=True, capture_output=True)
    code = (
        "import verifier, sys\n"
        "from verifier.subjects.load_file import builtin_files, builtin_folder\n"
        "print(verifier.__file__)\n"
        "print(builtin_folder())\n"
        "print(len(builtin_files()))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        check=True,
        capture_output=True,
        text=True,
    )
    module, folder, count = ended.stdout.split()
    assert Path(module).is_relative_to(tmp_path)
    assert Path(folder) == tmp_path / "verifier" / "kernels"
    assert int(count) == len(builtin_files())
