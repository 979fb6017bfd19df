"""Imports a kernel file in a process of its own first: one that hangs or ends its process costs no report."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import re
import signal
import sys
import tempfile
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, NoReturn

from verifier.execution.child_process import late
from verifier.execution.preloaded import Child
from verifier.execution.process_tree import death_message, end_with, kill, single_threaded
from verifier.subjects.load_file import LoadError, builtin_folder, load

IMPORT_SECONDS = 60.0
"""Limit of an import: of processor time, and of time in which it wants none (see `process.CASE_SECONDS`)."""
_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_END_SECONDS = 2.0
"""For the fault handler to say where a process is that is about to be killed."""


def try_out(path: Path, *, seconds: float = IMPORT_SECONDS) -> None:
    """Import a kernel file in a copy of this process, and say what keeps it from being imported here.

    What it raises is left to `load`, which says more of it. Nothing is tried of our own kernels, nor where a
    copy would be no fair trial: beside other threads, or on a system where libraries do not survive a fork.

    Raises:
        LoadError: it does not end, or it ends the process.

    """
    file = path.expanduser()
    if sys.platform != "linux" or not single_threaded() or not file.is_file():
        return
    if builtin_folder() in file.resolve().parents:
        return
    ours, theirs = Pipe(duplex=False)
    with tempfile.TemporaryFile() as stderr:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _import(file, theirs, stderr, parent)
        theirs.close()
        try:
            told = _watch(Child(pid=pid, connection=ours, stderr=stderr), seconds)
        finally:
            kill([pid])
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            ours.close()
        if told:
            raise LoadError(f"{path}: {_where(stderr, file)}{told}")


def _import(file: Path, connection: Connection, stderr: IO[bytes], parent: int) -> NoReturn:
    """Import the file and say so, in the copy; whatever happens, nothing returns from here."""
    try:
        os.setsid()
        end_with(parent)
        gc.freeze()  # what was copied is not the file's: a collection would read, and so copy, all of it
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1):
            os.dup2(nothing, number)
        os.dup2(stderr.fileno(), 2)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        faulthandler.enable(file=stderr, all_threads=False)
        with contextlib.suppress(BaseException):
            load(file)
        connection.send_bytes(b"imported")
    finally:
        os._exit(0)


def _watch(child: Child, seconds: float) -> str:
    """Return why the file cannot be imported, or nothing."""
    reason = late(child, seconds)
    if reason:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGABRT)
        end = time.monotonic() + _END_SECONDS
        looked = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while time.monotonic() < end and os.waitid(os.P_PID, child.pid, looked) is None:
            time.sleep(0.01)
        return f"its import does not end: {reason}"
    with contextlib.suppress(EOFError):
        child.connection.recv_bytes()
        return ""
    _, status = os.waitpid(child.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return f"{death_message(code)} while it was imported"


def _where(stderr: IO[bytes], file: Path) -> str:
    """Return the line of the file that the fault handler names, or nothing."""
    stderr.seek(0)
    text = stderr.read().decode(errors="replace")
    lines = [m["line"] for m in _LINE.finditer(text) if Path(m["file"]).name == file.name]
    return f"line {lines[0]}: " if lines else ""
