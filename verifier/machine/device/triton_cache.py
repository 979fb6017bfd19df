"""Keeps the code that Triton compiled apart by the file that it comes from, and writes it without waiting."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triton.runtime.cache import FileCacheManager


@contextmanager
def keyed_by_file() -> Iterator[None]:
    """Let Triton take no code from its caches that was compiled from another file.

    Its key of a function is made of the text and the first line. Line tables also name the file: without it,
    a copy of a kernel would be answered with the code of its original, and a report would name that.
    """
    from triton.runtime.jit import JITFunction

    owner: Any = next(c for c in JITFunction.__mro__ if "cache_key" in vars(c))
    before = vars(owner)["cache_key"]
    owner.cache_key = property(_with_the_file(before.fget))
    try:
        yield
    finally:
        owner.cache_key = before


def file_of(function: FunctionType) -> str:
    """Return the file that code compiled from a function answers to."""
    return function.__code__.co_filename


def _with_the_file(known: Callable[[object], object]) -> Callable[[Any], str]:
    def cache_key(self: Any) -> str:
        if self.hash is None:
            known(self)  # keeps the key in `hash`, where callers of this function find it
            parts = f"{self.hash}\0{file_of(self.fn)}"
            self.hash = hashlib.sha256(parts.encode(errors="surrogateescape")).hexdigest()
        return str(self.hash)

    return cache_key


@contextmanager
def written_without_waiting() -> Iterator[None]:
    """Let Triton write a file of its cache beside its place and rename it, without a folder for each.

    Triton makes a folder for every file and removes it again: where the file system has a journal, a kernel
    waits for the disk some 15 ms, for half a dozen files.
    """
    from triton.runtime.cache import FileCacheManager

    before = vars(FileCacheManager)["put"]
    FileCacheManager.put = _put
    try:
        yield
    finally:
        FileCacheManager.put = before


def _put(self: FileCacheManager, data: object, filename: str, binary: bool = True) -> str:
    """Do what Triton's own method does: nobody sees a file that is not whole."""
    content = data if isinstance(data, bytes) else str(data).encode()
    path: str = self._make_path(filename)
    folder = os.path.dirname(path)  # noqa: PTH120 (its paths are strings)
    part = os.path.join(folder, f"part.{uuid.uuid4().hex}")  # noqa: PTH118 (a long name has no room for more)
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103 (it may be gone meanwhile)
    try:
        with open(part, "wb") as file:  # noqa: PTH123 (its paths are strings)
            file.write(content)
        os.replace(part, path)  # noqa: PTH105
    except BaseException:
        with suppress(OSError):
            os.unlink(part)  # noqa: PTH108
        raise
    return path
