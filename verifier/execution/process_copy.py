"""Runs something in a copy of this process: what it leaves behind ends with the copy."""

from __future__ import annotations

import contextlib
import os
import pickle
import traceback
from collections.abc import Callable
from typing import TypeVar

from verifier.execution.process_tree import end_with, single_threaded

_Answer = TypeVar("_Answer")


class CopyError(RuntimeError):
    """What was to be made in a copy of this process raised an error, whose traceback this is."""


def in_a_copy(make: Callable[[], _Answer]) -> _Answer | None:
    """Return what a copy of this process makes, None where it ends without an answer.

    Nothing is tried beside other threads, which a copy lacks, and never where a device was used.

    Raises:
        CopyError: it raised an error, or its answer cannot be sent.

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
                end.write(_sent(make))
        finally:
            os._exit(0)
    os.close(write)
    try:
        with os.fdopen(read, "rb") as end, contextlib.suppress(EOFError, pickle.UnpicklingError):
            made, answer = pickle.load(end)  # noqa: S301 (our own copy)
            if not made:
                raise CopyError(answer)
            known: _Answer = answer
            return known
        return None
    finally:
        os.waitpid(pid, 0)


def _sent(make: Callable[[], object]) -> bytes:
    """Return what is made, or the traceback of the error instead, as it is sent."""
    try:
        return pickle.dumps((True, make()), protocol=5)
    except Exception:
        return pickle.dumps((False, traceback.format_exc()), protocol=5)
