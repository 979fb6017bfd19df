"""Compiled Triton and CUDA C++ kernels on the CPU: the PTX machine executes what the compiler emitted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

from verifier.arithmetic import ieee
from verifier.backends import _triton
from verifier.backends.cuda import documented
from verifier.compiled import Compiled
from verifier.ops import Setting
from verifier.subjects import Subject

NAME = "machine"
SUMMARY = "compiled PTX of Triton and CUDA C++ kernels, executed on the CPU"
LANGUAGES = ("triton", "cuda")

_open = ExitStack()


def unavailable() -> str | None:
    """Need nothing but NumPy: what a subject is compiled with is asked for each subject."""
    return None


def refuses(subject: Subject, dtype: str) -> str | None:
    """Refuse what cannot be compiled here."""
    del dtype
    if subject.language == "triton":
        return _triton.triton_missing()
    return compiler_missing() if subject.language == "cuda" else None


@cache
def compiler_missing() -> str | None:
    """Say why CUDA C++ cannot be compiled here and how to change that, or None."""
    from verifier.nvrtc import MissingCompilerError, version

    try:
        version()
    except MissingCompilerError as error:
        return str(error)
    return None


def setting(subject: Subject, dtype: str) -> Setting:
    """Return the documented arithmetic of the device that the PTX is made for, and the declared trees."""
    name = subject.accumulation(dtype)
    arithmetic = ieee(
        name,
        **documented(name),
        atomics=True,  # until the code is known
        evidence="documented errors of PTX's instructions, met by an H200 for every float32",
    )
    scalar = "float32" if subject.language == "triton" else None
    return Setting(arithmetic=arithmetic, trees=subject.claim.trees, scalar_format=scalar)


def environment() -> dict[str, str]:
    """Make sure that Triton compiles instead of interpreting, and that nothing can reach a real device."""
    return {"TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": "", **_triton.writable_cache()}


def prepare(**options: Any) -> None:
    """Play a device for the rest of this process; options are fields of `verifier.machine.Machine`."""
    from verifier.machine import session

    # Bytes of ones are NaN in every float format: a value that nobody wrote is seen wherever it goes.
    _open.enter_context(session(**{"poison": 0xFF, "strict": True, **options}))


def device() -> str:
    """Return the device that tensors are placed on: what they say, wherever their bytes lie."""
    from verifier.machine import current

    playing = current()
    assert playing is not None
    return str(playing.home)


def begin() -> None:
    """Start an execution."""
    from verifier.machine import current

    playing = current()
    assert playing is not None
    playing.launches.clear()
    playing.redirected.clear()
    playing.current_device, playing.stream = 0, None
    playing.codes.clear()
    playing.failed.clear()


@contextmanager
def varied(**changes: Any) -> Iterator[None]:
    """Run what is inside on a machine that differs in these fields of `verifier.machine.Machine`."""
    from verifier.machine import current

    playing = current()
    assert playing is not None
    usual = playing.machine
    playing.machine = replace(usual, **changes)
    try:
        yield
    finally:
        playing.machine = usual


def finish() -> None:
    """Wait for the end of an execution: launches end before they return."""


def launches() -> int:
    """Count launches since the start of the execution."""
    from verifier.machine import current

    playing = current()
    return 0 if playing is None else len(playing.launches)


def failed() -> Exception | None:
    """Return what the first launch raised that ended with a finding, or that the machine could not do."""
    from verifier.machine import current

    playing = current()
    return playing.failed[0] if playing is not None and playing.failed else None


def launched(subject: Subject) -> int | None:
    """Count what this process has launched: no kernel runs here but in the machine."""
    from verifier.machine.sessions import launched as count

    del subject
    return count()


def compiled(host: frozenset[str]) -> Compiled | None:
    """Say what the code launched since the start of the execution consists of.

    host: names of torch operations that computed meanwhile.
    """
    from verifier.backends import _compiled
    from verifier.machine import current

    playing = current()
    return _compiled.of_codes(playing.codes if playing is not None else (), host)


_NEEDS_CUDA = (
    "Cannot access accelerator device",
    "not compiled with CUDA",
    "without ATen_cuda",
    "not linked with support for cuda",
    "from the 'CUDA' backend",
    "No CUDA GPUs are available",
    "Found no NVIDIA driver",
    "CUDA driver version is insufficient",  # of a build for CUDA where no driver is
    "no CUDA-capable device is detected",
    "CUDA_ERROR_NO_DEVICE",
    "Storage device not recognized: cuda",
    "no pinned memory allocator is available",
    "module 'torch._C' has no attribute '_cuda_",
)


def lacks(error: BaseException) -> str | None:
    """Say what the machine lacks where torch's own code asked for a real device, or None."""
    import torch

    of_cuda = isinstance(error, getattr(torch, "AcceleratorError", ()))  # the machine raises none itself
    found = of_cuda or any(words in str(error) for words in _NEEDS_CUDA)
    return f"the machine lacks the device that torch asks for here: {error}".split("\n")[0] if found else None


def facts(error: BaseException | None = None) -> dict[str, Any]:
    """Say what was launched, and which kind of defect the machine found."""
    from verifier.machine import MachineFinding

    found: dict[str, Any] = {"launches": launches()}
    if isinstance(error, MachineFinding):
        found["machine_finding"] = error.kind
    return found
