"""Which lines of a subject's wrapper ran."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from verifier.machine.culprit import passed_on
from verifier.records.reach import SourcePlace
from verifier.subjects.source_map import SourceMap

QUIET = 30
"""Calls of one kind without a new line after which those are traced no more: it makes them twice as slow."""

Line = tuple[str, int]


class WrapperLines:
    """The lines of one subject's wrapper that ran."""

    def __init__(self, sources: SourceMap) -> None:
        """Know the statements; nothing has run."""
        self._statements = {(s.path, line): s.place for s in sources.statements for line in s.lines}
        self._files = sources.wrapper_files
        self._ran: set[Line] = set()
        self._quiet: Counter[Hashable] = Counter()

    def places(self) -> frozenset[SourcePlace]:
        """Return the statements that ran."""
        return frozenset(self._statements[line] for line in self._ran if line in self._statements)

    @contextmanager
    def followed(self, kind: Hashable) -> Iterator[None]:
        """Note the lines that run inside, in this thread, but for what launches do.

        kind: of call; each has lines of its own, so that one that is known stops no other.
        """
        if not self._files or self._quiet[kind] >= QUIET:
            yield
            return
        before = len(self._ran)
        with _traced(self._files, self._ran):
            yield
        self._quiet[kind] = 0 if len(self._ran) > before else self._quiet[kind] + 1


@contextmanager
def _traced(files: frozenset[str], ran: set[Line]) -> Iterator[None]:
    """Trace this thread, unless somebody else does."""

    def line(frame: FrameType, event: str, _: object) -> object:
        if event == "line":
            ran.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    def call(frame: FrameType, *_: object) -> Any:
        return line if frame.f_code.co_filename in files else None

    if sys.gettrace() is not None:
        yield
        return
    with ExitStack() as stack:
        for owner, name in _launches():
            stack.enter_context(_untraced(owner, name))
        sys.settrace(call)
        try:
            yield
        finally:
            if sys.gettrace() is call:
                sys.settrace(None)


def _launches() -> list[tuple[object, str]]:
    """Return the methods that launch kernels: nothing of a wrapper runs in them."""
    from verifier.subjects.cuda_source import Launch

    triton = sys.modules.get("triton.runtime.jit")
    found: list[tuple[Any, str]] = [] if triton is None else [(triton.JITFunction, "run")]
    return [*found, (Launch, "__call__")]


@contextmanager
def _untraced(owner: object, name: str) -> Iterator[None]:
    original = getattr(owner, name)

    def quietly(*args: object, **kwargs: object) -> object:
        tracing = sys.gettrace()
        sys.settrace(None)
        try:
            return passed_on(original, *args, **kwargs)
        finally:
            sys.settrace(tracing)

    setattr(owner, name, quietly)
    try:
        yield
    finally:
        setattr(owner, name, original)
