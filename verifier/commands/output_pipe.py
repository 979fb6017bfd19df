"""Output that nobody reads any more: `norm-verifier audit | head` still writes its files."""

from __future__ import annotations

import io
import os
import sys
from typing import Any


class _Lasting(io.FileIO):
    """A file that swallows what is written to it once its reader is gone."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.fileno())
            os.close(nothing)
            return len(data)


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
