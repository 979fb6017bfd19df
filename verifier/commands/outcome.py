"""How a command speaks and ends: clear lines, exit statuses, and files that can be written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import typer

USAGE_STATUS = 2
OWN_FAILURE_STATUS = 4
INTERRUPTED_STATUS = 130


@contextmanager
def reported(json_file: Path | None, *, seed: int, budget: str) -> Iterator[None]:
    """Reject a file that cannot be written; write a report of nothing where an interrupt comes before any."""
    must_be_writable(json_file)
    try:
        yield
    except KeyboardInterrupt:
        from verifier.audit.report.json_frame import frame

        told = frame(seed=seed, budget=budget, status=INTERRUPTED_STATUS, interrupted=True)
        if json_file is not None and (why := write_json(json_file, {**told, "costs": []})):
            complain(f"could not be written: {why}")
        raise


@contextmanager
def clear_errors() -> Iterator[None]:
    """Turn what a user can cause into one clear line and status 2."""
    try:
        yield
    except (typer.Exit, BrokenPipeError):
        raise
    except (ValueError, OSError) as error:
        stop(str(error))
    except Exception as error:
        from verifier.subjects.load_file import LoadError

        if isinstance(error, LoadError):
            stop(str(error))
        raise


def stop(message: str) -> NoReturn:
    """End with one line that says what is wrong, and status 2."""
    complain(message)
    raise typer.Exit(USAGE_STATUS)


def say(text: str) -> None:
    """Print lines in which nothing steers the terminal, whatever of them a subject has written."""
    from verifier.records.printable import block

    typer.echo(block(text))


def complain(message: str) -> None:
    """Print one line on standard error, whatever of it a subject has written."""
    from verifier.records.printable import line

    typer.echo(f"norm-verifier: {line(' '.join(message.split()))}", err=True)


def write_json(path: Path, document: object) -> str:
    """Write JSON to a file; return why it could not be written, or nothing."""
    from verifier.records.files import reason, write_text

    try:
        write_text(path, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        return f"{path}: {reason(error)}"
    return ""


def must_be_writable(path: Path | None) -> None:
    """Reject a file that cannot be written, before the work and not after it."""
    if path is None:
        return
    if str(path) == "-":
        raise ValueError("-: standard output is for the report that people read; name a file")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path}: the folder {path.absolute().parent} does not exist")
    if path.is_dir():
        raise ValueError(f"{path}: is a folder, not a file")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise ValueError(f"{path}: cannot be written")


def must_hold_files(path: Path, what: str = "findings") -> None:
    """Reject a place that is a file or lies where nothing can be written; what: is to be stored there."""
    nearest = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise ValueError(f"{path}: {what} cannot be stored there; {nearest} is no writable folder")
