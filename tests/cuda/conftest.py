"""What the tests of CUDA C++ need: a compiler, and a cache folder of their own."""

import pytest

from verifier import nvrtc


@pytest.fixture(scope="session")
def compiler():
    """Skip, with the reason, where NVRTC is not installed."""
    try:
        return nvrtc.version()
    except nvrtc.MissingCompilerError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    """Give the test an empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "norm-verifier" / "cuda"
