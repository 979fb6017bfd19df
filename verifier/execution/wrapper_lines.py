"""Which lines of a subject's wrapper ran."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from traceback import walk_tb
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from verifier.machine.culprit import passed_on
from verifier.records.reach import SourcePlace
from verifier.subjects.source_map import SourceMap

if TYPE_CHECKING:
    from _typeshed import TraceFunction

QUIET = 30
"""Calls of one kind without a new line after which those are followed no more: a trace doubles their time."""
_TOOLS = (4, 3)
"""Numbers of `sys.monitoring` that Python leaves to anybody."""

SourceLine = tuple[str, int]


class WrapperLines:
    """The lines of one subject's wrapper that ran."""

    def __init__(self, sources: SourceMap) -> None:
        """Know the statements; nothing has run."""
        self._statements = {(s.path, line): s.place for s in sources.statements for line in s.lines}
        self._files = sources.wrapper_files
        self._ran: set[SourceLine] = set()
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
            try:
                yield
            except Exception as error:  # what refuses rarely is not missed
                self._ran |= {line for line in _lines_of(error) if line[0] in self._files}
                raise
            return
        before = len(self._ran)
        with follow(self._files, self._ran):
            yield
        self._quiet[kind] = 0 if len(self._ran) > before else self._quiet[kind] + 1


def _lines_of(error: Exception) -> Iterator[SourceLine]:
    """Yield the lines that an error went through."""
    for frame, number in walk_tb(error.__traceback__):
        yield frame.f_code.co_filename, number


def follow(files: frozenset[str], ran: set[SourceLine]) -> AbstractContextManager[None]:
    """Note lines of these files by what Python has for it: events of lines from 3.12 on, else a trace.

    Only those of this thread, and none of what launches call.
    """
    if sys.version_info >= (3, 12):
        return _monitored(files, ran)
    else:  # noqa: RET505 - type checkers know the version by the branch
        return _traced(files, ran)


@contextmanager
def _traced(files: frozenset[str], ran: set[SourceLine]) -> Iterator[None]:
    """Trace this thread, unless somebody else does."""

    def line(frame: FrameType, event: str, _: object) -> TraceFunction:
        if event == "line":
            ran.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    def call(frame: FrameType, *_: object) -> TraceFunction | None:
        return line if frame.f_code.co_filename in files else None

    def on(tracing: object) -> None:
        sys.settrace(call if tracing else None)

    if sys.gettrace() is not None:
        yield
        return
    with _quiet_launches(lambda: sys.gettrace() is call, on):
        sys.settrace(call)
        try:
            yield
        finally:
            if sys.gettrace() is call:
                sys.settrace(None)


if sys.version_info >= (3, 12):

    @contextmanager
    def _monitored(files: frozenset[str], ran: set[SourceLine]) -> Iterator[None]:
        """Be told of each line once, unless no place is left among those that ask.

        Debuggers and coverage have places of their own. A trace makes every call of the process dearer; here
        only the first start of each function and the first run of each line of these files cost anything.
        """
        monitoring = sys.monitoring
        tool = next((number for number in _TOOLS if monitoring.get_tool(number) is None), None)
        if tool is None:
            yield
            return
        here, listening = threading.get_ident(), [True]

        def start(code: CodeType, _offset: int) -> object:
            if code.co_filename in files:
                monitoring.set_local_events(tool, code, monitoring.events.LINE)
                followed.append(code)
            return monitoring.DISABLE

        def line(code: CodeType, number: int) -> object:
            if not listening[0] or threading.get_ident() != here:
                return None
            ran.add((code.co_filename, number))
            return monitoring.DISABLE

        def on(now: bool) -> None:
            listening[0] = now

        followed: list[CodeType] = []
        monitoring.use_tool_id(tool, "norm-verifier")
        monitoring.register_callback(tool, monitoring.events.PY_START, start)
        monitoring.register_callback(tool, monitoring.events.LINE, line)
        monitoring.restart_events()  # what was switched off in the call before
        try:
            with _quiet_launches(lambda: listening[0], on):
                monitoring.set_events(tool, monitoring.events.PY_START)
                yield
        finally:
            monitoring.set_events(tool, monitoring.events.NO_EVENTS)
            for code in followed:
                monitoring.set_local_events(tool, code, monitoring.events.NO_EVENTS)
            monitoring.free_tool_id(tool)


@contextmanager
def _quiet_launches(listening: Callable[[], bool], listen: Callable[[bool], None]) -> Iterator[None]:
    """Stop listening in methods that launch kernels: nothing of a wrapper runs in them."""
    with ExitStack() as stack:
        for owner, name in _launches():
            stack.enter_context(_unheard(owner, name, listening, listen))
        yield


def _launches() -> list[tuple[object, str]]:
    """Return the methods that launch kernels."""
    from verifier.subjects.cuda_source import Launch

    triton = sys.modules.get("triton.runtime.jit")
    found: list[tuple[object, str]] = [] if triton is None else [(triton.JITFunction, "run")]
    return [*found, (Launch, "__call__")]


@contextmanager
def _unheard(
    owner: object, name: str, listening: Callable[[], bool], listen: Callable[[bool], None]
) -> Iterator[None]:
    original = getattr(owner, name)

    def quietly(*args: object, **kwargs: object) -> object:
        if not listening():
            return passed_on(original, *args, **kwargs)
        listen(False)
        try:
            return passed_on(original, *args, **kwargs)
        finally:
            listen(True)

    setattr(owner, name, quietly)
    try:
        yield
    finally:
        setattr(owner, name, original)
