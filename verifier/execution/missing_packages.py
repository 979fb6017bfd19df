"""What an import that fails within a call is about: the subject, or the packages that are installed here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

from verifier.records.printable import said
from verifier.subjects.load_file import repository_folders

_INSTALLED = {"site-packages", "dist-packages"}
"""Folders of installed packages; an environment may lie in a repository."""


def missing_package(error: BaseException) -> str:
    """Return which package is not installed, or is of another version than what imports it needs, or "".

    An import that a call comes to fails for a package that is not there as it does for a name that is
    misspelt: which of the two it is nobody can tell from here. It is the subject's own doing where a package
    lacks what it imports of itself, or where what is imported lies in the repository of what imports it.

    error: as the subject raised it. Of failed imports that it was raised from the first to fail counts.
    """
    causes = list(_causes(error))
    named = [(one, name) for one in causes if (name := _name(one))]
    if named:
        return _told(*named[-1])
    return said(causes[0], first_line=True) if causes else ""  # raised by hand, which says what it needs


def _causes(error: BaseException) -> Iterator[ImportError]:
    """Yield an error and what it was raised from, as it says itself, as long as these are failed imports."""
    seen: set[int] = set()
    one: BaseException | None = error
    while isinstance(one, ImportError) and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__


def _name(error: ImportError) -> str:
    """Return the name of the module that an import was about, or "" where the error tells none."""
    try:
        name = error.name
    except ValueError:  # of an error of metadata without arguments
        return ""
    return name if isinstance(name, str) else ""


def _told(error: ImportError, name: str) -> str:
    text, package = said(error, first_line=True), name.partition(".")[0]
    file, module = _importer(error)
    place = error.path if isinstance(error.path, str) else _place(package)
    if place is None:
        beside = Path(file).parent / package
        module_beside = beside.with_suffix(".py")
        own = beside.is_dir() or (module_beside.is_file() and module_beside != Path(file))
        return "" if own else f"{text} ({package} is not installed here)"
    if _is_near(place, file):
        return ""
    if place.endswith(tuple(EXTENSION_SUFFIXES)):
        return f"{text} (an extension that cannot be loaded here)"
    versions = [found for one in _distributions().get(package, ()) if one and (found := _version(one))]
    if not versions or package == module.partition(".")[0]:
        return ""
    return f"{text} ({' and '.join(dict.fromkeys(versions))} is what is installed here)"


def _place(package: str) -> str | None:
    """Return where a package lies, "" if nobody says so, None if there is none."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):  # ValueError: it is loaded, by no ordinary means
        return ""
    if spec is None:
        return None
    return next(iter(spec.submodule_search_locations or ()), spec.origin) or ""


def _is_near(place: str, file: str) -> bool:
    """Return whether a module lies in the repository of the file that imports it, and is not installed."""
    folders = repository_folders(Path(file)) if place and file else []
    inside = [folder for folder in folders if Path(place).is_relative_to(folder)]
    return any(not _INSTALLED & {*Path(place).relative_to(folder).parts} for folder in inside)


@cache
def _distributions() -> Mapping[str, Sequence[str | None]]:
    return metadata.packages_distributions()


def _version(distribution: str) -> str:
    """Return a distribution with its version, or "" of what is left of one."""
    try:
        return f"{distribution} {metadata.version(distribution)}"
    except metadata.PackageNotFoundError:
        return ""


def _importer(error: ImportError) -> tuple[str, str]:
    """Return file and module of the innermost code outside of Python's own machinery of imports."""
    traceback, file, module = error.__traceback__, "", ""
    while traceback is not None:
        name = str(traceback.tb_frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] not in {"importlib", "_frozen_importlib"}:
            file, module = traceback.tb_frame.f_code.co_filename, name
        traceback = traceback.tb_next
    return file, module
