"""Streams and names of files: output that nobody reads any more, or a locale of ASCII, ends no command."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Lasting(io.FileIO):
    """A file that swallows what is written to it once its reader is gone."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.fileno())
            os.close(nothing)
            return memoryview(data).nbytes


def outlive_readers() -> None:
    """Let standard output and standard error of this process survive their readers."""
    if sys.stdout is sys.__stdout__:
        sys.stdout = _lasting(sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _lasting(sys.stderr)


def _lasting(stream: object) -> object:
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    # The stream itself stays, as sys.__stdout__ or sys.__stderr__: the file is not closed with it.
    return io.TextIOWrapper(
        io.BufferedWriter(_Lasting(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def read_paths_as_utf8() -> None:
    """Begin again where Python takes the names of files for ASCII (LC_ALL=C, PYTHONUTF8=0).

    Compilers and our own files name a kernel's path in UTF-8, whatever the locale.
    """
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 (this very command)


def speak_the_terminals_characters() -> None:
    """Write what a terminal cannot show as escapes, where Python would end with an error (LC_ALL=C)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
