"""What an import that fails within a call is about: the subject, or the packages that are installed here."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import packages_distributions
from importlib.util import find_spec

from verifier.records.library import version_of
from verifier.records.printable import said


def missing_package(error: BaseException) -> str:
    """Return which package is not installed, or is of another version than what imports it needs, or "".

    An import that a call comes to fails for a package that is not there as it does for a name that is
    misspelt: which of the two it is nobody can tell from here. It is the subject's own doing where a package
    lacks what it imports of itself, or where a module of the subject's own repository lacks a name.

    error: as the subject raised it. What it was raised from is looked at first, since it says more.
    """
    causes = [one for one in _causes(error) if isinstance(one, ImportError)]
    named = [one for one in causes if one.name]
    if named:
        return next((told for one in named if (told := _told(one))), "")
    return said(causes[0], first_line=True) if causes else ""  # raised by hand, which says what it needs


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, then what it was raised from, as it says itself."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__


def _told(error: ImportError) -> str:
    text = said(error, first_line=True)
    package = (error.name or "").partition(".")[0]
    if not _found(package):
        return f"{text} ({package} is not installed here)"
    distributions = packages_distributions().get(package, [])
    if not distributions or package == _importer(error):
        return ""
    installed = " and ".join(f"{one} {version_of(one)}" for one in dict.fromkeys(distributions))
    return f"{text} ({installed} is what is installed here)"


def _found(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # ValueError: it is loaded, by no ordinary means
        return True


def _importer(error: ImportError) -> str:
    """Return the package of the innermost code outside of Python's own machinery of imports."""
    traceback, name = error.__traceback__, ""
    while traceback is not None:
        module = str(traceback.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in {"importlib", "_frozen_importlib"}:
            name = module
        traceback = traceback.tb_next
    return name.partition(".")[0]
