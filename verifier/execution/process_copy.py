"""Runs something in a copy of this process: what it leaves behind ends with the copy."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable
from typing import TypeVar

from verifier.execution.process_tree import end_with, single_threaded

_Answer = TypeVar("_Answer")


def in_a_copy(make: Callable[[], _Answer]) -> _Answer | None:
    """Return what a copy of this process makes, None where it ends without an answer.

    Nothing is tried beside other threads, which a copy lacks, and never where a device was used.
    """
    if not single_threaded():
        return None
    read, write = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            end_with(parent)
            os.close(read)
            with os.fdopen(write, "wb") as end:
                pickle.dump(make(), end, protocol=5)
        finally:
            os._exit(0)
    os.close(write)
    try:
        with os.fdopen(read, "rb") as end, contextlib.suppress(EOFError, pickle.UnpicklingError):
            answer: _Answer = pickle.load(end)  # noqa: S301 (our own copy)
            return answer
        return None
    finally:
        os.waitpid(pid, 0)
