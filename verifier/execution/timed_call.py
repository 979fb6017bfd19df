"""One call with a limit in seconds, and what ended it: an error, a refusal, the clock."""

from __future__ import annotations

import linecache
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from verifier.records.printable import said

HANGS = "it does not come back"
"""What is said of a call that was stopped."""


class _HungError(BaseException):
    """A call that does not come back; no Exception, which a wrapper might catch."""


OTHERS = frozenset(["torch", "triton", "verifier"])
"""Packages whose own statements `raise` are no decision of a wrapper."""


@dataclass(frozen=True)
class Raised:
    """What ended a call, in words, or nothing; on_purpose: whether a statement of a wrapper says so."""

    text: str = ""
    on_purpose: bool = False


def call_within(seconds: float, call: Callable[[], None]) -> Raised:
    """Call; return what was raised. What takes longer by the clock is stopped."""

    def stop(*_: object) -> None:
        raise _HungError

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
    except _HungError:
        return Raised(HANGS)
    except Exception as error:
        return Raised(said(error, first_line=True), on_purpose=_on_purpose(error))
    finally:
        signal.signal(signal.SIGALRM, before)
    return Raised()


def _on_purpose(error: Exception) -> bool:
    """Return whether a statement `raise` or `assert` raised it that is not of torch or Triton."""
    frame, number = [*traceback.walk_tb(error.__traceback__)][-1]
    statement = linecache.getline(frame.f_code.co_filename, number, frame.f_globals).strip()
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return statement.startswith(("raise", "assert")) and package not in OTHERS
