"""Waiting for what happens soon, and no longer than that."""

import contextlib
import time
from pathlib import Path


def until(question, seconds=5):
    """Return the answer as soon as there is one, or the last after so many seconds."""
    end = time.monotonic() + seconds
    while not (answer := question()) and time.monotonic() < end:
        time.sleep(0.02)
    return answer


def gone(pid):
    """Return whether a process has ended, waited for or not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True
