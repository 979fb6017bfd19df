"""What is told of a line before it has ended, from whichever process works on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from verifier.records.verdict import Finding, Verdict

FirstCases = tuple[tuple[str, Verdict | None], ...]
"""Kinds of cases that were judged before all others; of each its verdict, None where nothing was decided."""
SECONDS_APART = 0.2
"""Between two news of a line: somebody reads them."""

_listeners: list[Callable[[News], None]] = []


@dataclass(frozen=True, kw_only=True)
class News:
    """How far one line is: cases that have been judged; words: what its kernel has printed since.

    finding: one that was made just now. first_cases: what came of them, which says nothing of how far it is.
    """

    subject: str
    check: str
    dtype: str
    cases: int
    words: str = ""
    finding: Finding | None = None
    first_cases: FirstCases = ()


@contextmanager
def heard_by(listener: Callable[[News], None]) -> Iterator[None]:
    """Let this process tell its news to a listener."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


class Reporter:
    """Tells that a line has begun, how many cases it has judged, and what they are."""

    def __init__(self, subject: str, check: str, dtype: str) -> None:
        """Begin with nothing judged, and nothing told."""
        self._names = {"subject": subject, "check": check, "dtype": dtype}
        self._cases = 0
        self._told = 0.0

    def begin(self) -> None:
        """Tell that the line has begun."""
        self._tell()

    def case(self) -> None:
        """Count a case; it is told unless the last news are fresh."""
        self._cases += 1
        if time.monotonic() - self._told >= SECONDS_APART:
            self._tell()

    def words(self, text: str) -> None:
        """Tell at once what the kernel has printed."""
        self._tell(words=text)

    def finding(self, finding: Finding) -> None:
        """Tell a finding at once."""
        self._tell(finding=finding)

    def first_cases(self, judged: FirstCases) -> None:
        """Tell what came of the cases that are judged before all others."""
        self._tell(first_cases=judged)

    def _tell(self, *, words: str = "", finding: Finding | None = None, first_cases: FirstCases = ()) -> None:
        self._told = time.monotonic()
        news = News(**self._names, cases=self._cases, words=words, finding=finding, first_cases=first_cases)
        for listener in _listeners:
            listener(news)
