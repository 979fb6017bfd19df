"""Keeps the code that Triton compiled apart by the file that it comes from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


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


def _with_the_file(known: Callable[[object], object]) -> Callable[[Any], str]:
    def cache_key(self: Any) -> str:
        if self.hash is None:
            known(self)  # keeps the key in `hash`, where callers of this function find it
            parts = f"{self.hash}\0{self.fn.__code__.co_filename}"
            self.hash = hashlib.sha256(parts.encode(errors="surrogateescape")).hexdigest()
        return str(self.hash)

    return cache_key
