"""Keeps on disk what follows from PTX alone, so that a process does not compute what another has computed.

Nothing is kept unless `keep_results_in` named a folder. What is kept answers to the machine's own sources: of
other sources, and of another Python or NumPy, it lies in another folder and is not seen.
"""

from __future__ import annotations

import gc
import hashlib
import io
import marshal
import os
import pickle
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import CodeType
from typing import TypeVar, cast

import numpy as np

Result = TypeVar("Result")
Names = Mapping[int, str]
"""By the `id` of an object, what stands for it in a file."""

OTHERS_STAY = 7 * 24 * 3600.0
"""Seconds for which results of other sources stay on disk when nobody has opened their folder."""
MOST_KEPT = 20_000
"""Files beyond which the oldest half is removed: some 300 MB."""
_CHECK = hashlib.sha256().digest_size
_folder: list[Path] = []


def keep_results_in(folder: Path) -> None:
    """Keep results below a folder from now on, in this process and in those that it forks.

    Where nothing can be written, nothing is kept.
    """
    own = folder / _sources()
    with suppress(OSError):
        own.mkdir(parents=True, exist_ok=True)
        os.utime(own)
        _tidy(folder, own)
    _folder[:] = [own]


def are_kept() -> bool:
    """Return whether results are kept."""
    return bool(_folder)


def kept(
    kind: str,
    parts: tuple[str, ...],
    make: Callable[[], Result],
    *,
    name: Callable[[Result], Names] = lambda _: {},
    find: Callable[[str], object] = str,
) -> Result:
    """Return what is kept of this kind for these parts, or make it and keep it.

    parts: everything that the result follows from. name: the objects in a result that are not written but
    named; find: gives the object of a name.
    """
    if not _folder:
        return make()
    key = hashlib.sha256("\0".join((kind, *map(repr, parts))).encode()).hexdigest()
    file = _folder[0] / key
    known = _read(file, find)
    if known is not None:
        return cast("Result", known[0])
    made = make()
    _write(file, made, name(made))
    return made


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, names: Names) -> None:
        super().__init__(file, protocol=5)
        self.names = names

    def reducer_override(self, obj: object) -> tuple[Callable[..., object], tuple[object, ...]]:
        """Tell what stands for a function or an object of a class; others are written as ever."""
        if (word := self.names.get(id(obj))) is not None:
            return _named, (word,)
        if isinstance(obj, CodeType):
            return marshal.loads, (marshal.dumps(obj),)
        if isinstance(obj, BaseException):
            raise pickle.PicklingError("an error is not made again of what it says")
        return NotImplemented  # type: ignore[no-any-return]


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, find: Callable[[str], object]) -> None:
        super().__init__(file)
        self.find = find

    def find_class(self, module: str, name: str) -> object:
        found = _CLASSES.get((module, name))
        if found is None:
            found = _CLASSES[module, name] = super().find_class(module, name)
        return self.find if found is _named else found


_CLASSES: dict[tuple[str, str], object] = {}
"""What files name of modules: to look it up takes a tenth of the time of reading a file, measured."""


def _named(word: str) -> object:
    """Stand in a file for what finds the object of a name, which each reader brings along."""
    raise pickle.UnpicklingError(f"nobody says what {word} is")


def _read(file: Path, find: Callable[[str], object]) -> tuple[object] | None:
    """Return what a file holds; nothing where there is none, or where it is not as it was written."""
    try:
        data = file.read_bytes()
    except OSError:
        return None
    check, packed = data[:_CHECK], data[_CHECK:]
    if hashlib.sha256(packed).digest() != check:
        return None
    looks = gc.isenabled()
    gc.disable()  # it finds nothing in what is being made, and looks at all of it again and again
    try:
        return (_Reader(io.BytesIO(zlib.decompress(packed)), find).load(),)
    finally:
        if looks:
            gc.enable()


def _write(file: Path, made: object, names: Names) -> None:
    """Write a file whole or not at all; what cannot be written is made again each time."""
    text = io.BytesIO()
    try:
        _Writer(text, names).dump(made)
    except (pickle.PicklingError, AttributeError, TypeError):  # a function without a name of its own
        return
    packed = zlib.compress(text.getvalue(), 1)
    part = file.with_name(f".{file.name}-{os.getpid()}")
    with suppress(OSError):
        part.write_bytes(hashlib.sha256(packed).digest() + packed)
        part.replace(file)


@cache
def _sources() -> str:
    """Return a hash of everything that results follow from besides their parts."""
    root = Path(__file__).parent
    found = hashlib.sha256(f"{sys.version}\0{np.__version__}".encode())
    for file in sorted(root.rglob("*.py")):
        found.update(file.relative_to(root).as_posix().encode())
        found.update(file.read_bytes())
    return found.hexdigest()[:32]


def _tidy(folder: Path, own: Path) -> None:
    """Remove what other sources left behind long ago, and the oldest of too many results."""
    for other in folder.iterdir():
        if other != own and time.time() - other.stat().st_mtime > OTHERS_STAY:
            shutil.rmtree(other, ignore_errors=True)
    files = list(os.scandir(own))
    if len(files) > MOST_KEPT:
        oldest = sorted(files, key=lambda file: file.stat().st_mtime)[: len(files) // 2]
        for file in oldest:
            Path(file).unlink(missing_ok=True)
