"""Compiled code names the file that it is compiled from; where no cache can be written, there is one."""

import os
import sys

import pytest

pytest.importorskip("triton")

from verifier import machine
from verifier.execution.backends import _triton
from verifier.subjects.load_file import load

KERNEL = """
import torch, triton
import triton.language as tl

@triton.jit
def _half(value):
    return value * 0.5

@triton.jit
def _kernel(x):
    at = tl.arange(0, 32)
    tl.store(x + at, _half(tl.load(x + at)))

def run():
    x = torch.ones(32)
    _kernel[(1,)](x, num_warps=1)
    return x
"""


ALIVE = []
"""Modules whose kernels may not end outside of a session."""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def files_named(path):
    """Run a kernel file and return the files that the line tables of its code name."""
    module = load(path).module
    ALIVE.append(module)
    with machine.session() as opened:
        assert module.run().tolist() == [0.5] * 32
        ((ptx, _),) = opened.codes
    del sys.modules[module.__name__]
    return {line.split('"')[1].rpartition("/")[2] for line in ptx.splitlines() if ".file" in line}


def test_a_copy_of_a_kernel_is_compiled_for_itself_and_a_kernel_once(tmp_path, cache):
    for name in ("first.py", "second.py"):
        (tmp_path / name).write_text(KERNEL)
    assert files_named(tmp_path / "first.py") == {"first.py"}
    assert files_named(tmp_path / "second.py") == {"second.py"}
    compiled = sorted(cache.iterdir())
    assert files_named(tmp_path / "first.py") == {"first.py"}
    assert sorted(cache.iterdir()) == compiled


def test_outside_of_a_session_the_keys_are_triton_s_own():
    from triton.runtime.jit import JITFunction

    owner = next(c for c in JITFunction.__mro__ if "cache_key" in vars(c))
    before = vars(owner)["cache_key"]
    with machine.session():
        assert vars(owner)["cache_key"] is not before
    assert vars(owner)["cache_key"] is before


def test_a_file_is_written_as_triton_writes_it_or_not_at_all(cache, monkeypatch):
    from triton.runtime.cache import FileCacheManager

    contents = {"text": "Δ\n", "bytes": b"\r\n\0", "number": 3}
    own = FileCacheManager("OWN")
    for name, content in contents.items():
        own.put(content, name)
    with machine.session():
        kept = FileCacheManager("KEPT")
        for name, content in contents.items():
            assert kept.put(content, name) == kept.get_file(name) == str(cache / "KEPT" / name)
        monkeypatch.setattr(os, "replace", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            kept.put("part", "broken")
    read = {file.name: file.read_bytes() for file in (cache / "OWN").iterdir()}
    assert read == {file.name: file.read_bytes() for file in (cache / "KEPT").iterdir()}
    assert FileCacheManager.put.__module__ == FileCacheManager.__module__


def test_a_long_name_and_a_folder_that_is_gone_are_written_as_by_triton(cache):
    from triton.runtime.cache import FileCacheManager

    name = f"{'fused' * 49}.ttgir"  # as long as file systems take names
    FileCacheManager("OWN").put("code", name)
    with machine.session():
        kept = FileCacheManager("KEPT")
        (cache / "KEPT").rmdir()
        kept.put("code", name)
    assert (cache / "KEPT" / name).read_text() == (cache / "OWN" / name).read_text()


def test_a_cache_that_cannot_be_written_is_replaced_and_another_is_kept(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "fine"))
    assert _triton.writable_cache() == {}
    for folder in (tmp_path / "file" / "cache", tmp_path / "file", "/proc/cache"):
        monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
        found = _triton.writable_cache()
        monkeypatch.setenv("TRITON_CACHE_DIR", found["TRITON_CACHE_DIR"])
        assert _triton.writable_cache() == {}
    monkeypatch.delenv("TRITON_CACHE_DIR")
    monkeypatch.setenv("TRITON_HOME", "/proc")
    assert _triton.writable_cache() == found


@pytest.mark.parametrize("name", ["machine", "cuda"])
def test_children_compile_where_the_cache_can_be_written(name, monkeypatch):
    from verifier.execution.backends import backend

    monkeypatch.setenv("TRITON_CACHE_DIR", "/proc/cache")
    assert backend(name).environment()["TRITON_CACHE_DIR"] != "/proc/cache"
