"""Counts launches of kernels, whatever executes them, with the code of those that were compiled."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from verifier.machine.culprit import passed_on
from verifier.records.files import cache_folder, keep
from verifier.records.subject import Subject

_launches = 0
_total = 0
_cuda_before = 0
_codes: set[tuple[str, str]] = set()


def count_launches() -> None:
    """Begin to count every launch of a Triton kernel in this process."""
    from triton.runtime.interpreter import GridExecutor
    from triton.runtime.jit import JITFunction

    _wrap(JITFunction, "run")
    _wrap(GridExecutor, "__call__")


def reset() -> None:
    """Start the count at zero."""
    global _launches, _cuda_before
    from verifier.subjects.cuda_source import codes as cuda_codes
    from verifier.subjects.cuda_source import launches as cuda_launches

    _launches, _cuda_before = 0, cuda_launches()
    _codes.clear()
    cuda_codes().clear()


def launches() -> int:
    """Return the launches since the last reset."""
    from verifier.subjects.cuda_source import launches as cuda_launches

    return _launches + cuda_launches() - _cuda_before


def launched(subject: Subject) -> int | None:
    """Return all launches of this process; None where the subject's kernels may be launched unseen."""
    from verifier.subjects.cuda_source import CudaSource
    from verifier.subjects.cuda_source import launches as cuda_launches

    known = getattr(subject.function, "__globals__", {}).values()
    if subject.language != "triton" and not any(isinstance(value, CudaSource) for value in known):
        return None
    return _total + cuda_launches()


def codes() -> set[tuple[str, str]]:
    """Return PTX and name of each kernel compiled for a device and launched since the last reset."""
    from verifier.subjects.cuda_source import codes as cuda_codes

    return _codes | cuda_codes()


def _wrap(owner: object, name: str) -> None:
    original = getattr(owner, name)

    def counted(*args: object, **kwargs: object) -> object:
        global _launches, _total  # noqa: PLW0603
        _launches += 1
        _total += not kwargs.get("warmup")
        kernel = passed_on(original, *args, **kwargs)
        code = getattr(kernel, "asm", {})
        if "ptx" in code:
            _codes.add((code["ptx"], kernel.metadata.name))
        return kernel

    setattr(owner, name, counted)


def preload() -> None:
    """Find the key of Triton itself, which a process asks for once: a hash of its libraries.

    What Triton imports at a first launch is imported, too.
    """
    if triton_missing() is not None:
        return
    import triton

    for name in ("triton.experimental.gluon.nvidia.hopper", "triton.tools.tensor_descriptor"):
        with contextlib.suppress(ImportError):  # by version
            importlib.import_module(name)
    for name in ("triton.runtime.cache", "triton.compiler.compiler"):  # by version
        module = importlib.import_module(name)
        make: Callable[[], str] | None = getattr(module, "triton_key", None)
        if make is not None:
            key = kept_key(Path(triton.__file__).parent, make)
            vars(module)["triton_key"] = partial(str, key)  # as Triton does in processes that it starts
            return


def kept_key(package: Path, make: Callable[[], str]) -> str:
    """Return a hash of a package's files, which is made anew when one of them has changed.

    To make it takes reading hundreds of megabytes. A file has changed if its name, size or time has.
    """
    files = sorted(file for file in package.rglob("*") if "__pycache__" not in file.parts)
    seen = [(str(file), about.st_size, about.st_mtime_ns) for file in files if (about := file.stat())]
    place = cache_folder("triton") / hashlib.sha256(repr(seen).encode()).hexdigest()
    try:
        return place.read_text(encoding="utf-8")
    except (OSError, ValueError):
        key = make()
        keep(place, key)
        return key


def triton_missing() -> str | None:
    """Return why Triton cannot be imported, or None."""
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return f"Triton cannot be imported ({error}); pip install triton"
    return None


def writable_cache() -> dict[str, str]:
    """Return the environment in which Triton can cache: a temporary folder where its own cannot be written.

    Without one it would fail at every kernel.
    """
    own = os.environ.get("TRITON_CACHE_DIR")
    folder = Path(own) if own else Path(os.environ.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"
    return {} if _can_hold_files(folder) else {"TRITON_CACHE_DIR": _temporary_cache()}


def _can_hold_files(folder: Path) -> bool:
    """Return whether files can be made in a folder, by making one: permissions do not say it of root."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


@cache
def _temporary_cache() -> str:
    folder = tempfile.mkdtemp(prefix="norm-verifier-triton-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
