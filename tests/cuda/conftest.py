"""What the tests of CUDA C++ need: a compiler, and a cache folder of their own."""

import pytest

from verifier import cuda_source


@pytest.fixture(scope="session")
def nvrtc():
    """Skip, with the reason, where NVRTC is not installed."""
    try:
        return cuda_source.nvrtc_version()
    except cuda_source.MissingCompilerError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    """Give the test an empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "norm-verifier" / "cuda"
