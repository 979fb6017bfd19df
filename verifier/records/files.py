"""Writes files whole or not at all, and reads no more of them than there should be."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give the name to write to instead of `path`; what was written takes its place at the end, in one step.

    After an error nothing is left of it, and what stood there before stands there still. Devices and pipes
    are written as they are.

    Raises:
        OSError: the file cannot be written, renamed or made.

    """
    if (path.exists() and not path.is_file()) or path.is_relative_to("/dev") or path.is_relative_to("/proc"):
        yield path
        return
    path = Path(os.path.realpath(path))  # a link keeps pointing to its file
    part = path.with_name(f".norm-verifier-{os.getpid()}-{secrets.token_hex(4)}{path.suffix[:16]}")
    try:
        yield part
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all, see `replacing`."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def cache_folder(kind: str) -> Path:
    """Return the folder of the user's cache that keeps what is of one kind; it need not exist."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "norm-verifier" / kind


def keep(path: Path, text: str) -> None:
    """Write a file whole or not at all, with its folder; where nothing can be written, do nothing."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write several files of which none makes sense alone: none is put in place before all are written."""
    if not contents:
        return
    (path, data), *others = contents.items()
    with replacing(path) as part:
        part.write_bytes(data)
        write_together(dict(others))


def read_bytes(path: Path, limit: int) -> bytes:
    """Return the content of a regular file of at most `limit` bytes.

    Nothing is read of a device or a pipe, which may have no end, nor of a file that is too large.

    Raises:
        OSError: there is no such file, it is no regular file, is too large or cannot be read.

    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"is no regular file but {_kind(found.st_mode)}")
    if found.st_size > limit:
        raise OSError(f"has {found.st_size} bytes; at most {limit} belong there")
    with path.open("rb") as file:
        return file.read(limit)


def reason(error: OSError) -> str:
    """Return why the system refused, without the name of the file, which may be a temporary one."""
    return error.strerror or str(error)


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a pipe",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")
