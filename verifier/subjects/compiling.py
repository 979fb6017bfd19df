"""Marks a process that compiles a kernel where others see it: in the name by which Linux lists it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from verifier.machine.culprit import passed_on
from verifier.machine.pace import PACE

MARK = "compiling"
_NAME = Path("/proc/self/comm")

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@contextmanager
def marked() -> Iterator[None]:
    """Mark this process, whose pace is not judged meanwhile; nobody sees it unless Linux lists processes."""
    before = ""
    with suppress(OSError):
        before = _NAME.read_text(encoding="utf-8").strip()
        _NAME.write_text(MARK, encoding="utf-8")
    try:
        with PACE.stopped():
            yield
    finally:
        with suppress(OSError):
            _NAME.write_text(before, encoding="utf-8")


def marking(compile_: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return a function that compiles as this one does, in a process that is marked meanwhile.

    What the compiler says of a kernel is said of the subject, as without the mark.
    """

    @functools.wraps(compile_)
    def compiles(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with marked():
            return passed_on(compile_, *args, **kwargs)

    return compiles


def mark_triton() -> None:
    """Mark this process whenever Triton compiles, if it is imported."""
    compiler = sys.modules.get("triton.compiler")
    found = getattr(compiler, "compile", None)
    if compiler is not None and found is not None and not hasattr(found, "__wrapped__"):
        compiler.compile = marking(found)  # type: ignore[attr-defined]


def any_compiles(pids: Iterable[int]) -> bool:
    """Return whether one of these processes is marked."""
    for pid in pids:
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip() == MARK:
                return True
    return False
