"""The key of Triton is what Triton makes of its files, and is made again when one of them has changed."""

import os
from pathlib import Path

import pytest

from verifier.execution.backends import _triton


@pytest.fixture
def package(tmp_path, cache_folder):
    folder = tmp_path / "package"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "code.py").write_text("one")
    return folder


def made(package):
    """Return the key, and how often it was made."""
    calls = []

    def make():
        calls.append(1)
        return (package / "inner" / "code.py").read_text()

    return _triton.kept_key(package, make), len(calls)


def longer(file):
    file.write_text("longer")


def later(file):
    before = file.stat()
    file.write_text("two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))


def beside(file):
    (file.parent / "more.py").write_text("")


def test_a_key_is_made_once(package):
    assert made(package) == ("one", 1)
    assert made(package) == ("one", 0)


@pytest.mark.parametrize("change", [longer, later, beside])
def test_a_change_of_a_file_is_seen(package, change):
    made(package)
    file = package / "inner" / "code.py"
    change(file)
    assert made(package) == (file.read_text(), 1)


def test_it_is_the_key_that_triton_makes(cache_folder, monkeypatch):
    cache = pytest.importorskip("triton.runtime.cache")
    own = cache.triton_key
    for _ in range(2):  # made, then read
        monkeypatch.setattr(cache, "triton_key", own)
        _triton.preload()
        assert cache.triton_key is not own
        assert cache.triton_key() == own()
    assert len(list((Path(os.environ["XDG_CACHE_HOME"]) / "norm-verifier" / "triton").iterdir())) == 1
