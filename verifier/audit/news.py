"""What is told of a line before it has ended, from whichever process works on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

SECONDS_APART = 0.2
"""Between two news of a line: somebody reads them."""

_listeners: list[Callable[[News], None]] = []


@dataclass(frozen=True, kw_only=True)
class News:
    """How far one line is: cases that have been judged; words: what its kernel has printed since."""

    subject: str
    check: str
    dtype: str
    cases: int
    words: str = ""


@contextmanager
def heard_by(listener: Callable[[News], None]) -> Iterator[None]:
    """Let this process tell its news to a listener."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


class Reporter:
    """Tells that a line has begun, and how many cases it has judged."""

    def __init__(self, subject: str, check: str, dtype: str) -> None:
        """Tell that the line has begun."""
        self._names = {"subject": subject, "check": check, "dtype": dtype}
        self._cases = 0
        self._tell()

    def case(self) -> None:
        """Count a case; it is told unless the last news are fresh."""
        self._cases += 1
        if time.monotonic() - self._told >= SECONDS_APART:
            self._tell()

    def words(self, text: str) -> None:
        """Tell at once what the kernel has printed."""
        self._tell(text)

    def _tell(self, words: str = "") -> None:
        self._told = time.monotonic()
        for listener in _listeners:
            listener(News(**self._names, cases=self._cases, words=words))
