"""The libraries whose norms are declared: their files, what is installed, and what is not audited."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from verifier.records.library import Library
from verifier.records.subject import Subject
from verifier.subjects.library_names import sources_of, taken_by_functions
from verifier.subjects.load_file import LoadError, builtin_folder, load

FOLDER = "libraries"
"""Inside the folder of the built-in kernels, which the package carries along."""


@dataclass(frozen=True, kw_only=True)
class LibraryFound:
    """What of a library was audited: a version, and what of it was not.

    absent: by subject, the names that this version does not have. unreached: by module, the norms that no
    declaration reaches.
    """

    distribution: str
    package: str
    version: str
    path: str
    absent: dict[str, list[str]] = field(default_factory=dict)
    unreached: dict[str, list[str]] = field(default_factory=dict)


def library_files() -> dict[str, Path]:
    """Return the files of libraries by name: that of the file."""
    return {file.stem: file for file in sorted((builtin_folder() / FOLDER).glob("*.py"))}


def library_of(path: str | Path) -> Library | None:
    """Return the library whose norms a file declares, None where it is no such file."""
    try:
        return load(path).library
    except LoadError:
        return None


def distributions_of(path: str | Path) -> tuple[str, ...]:
    """Return the distributions that a result of a file depends on, besides what every result does."""
    library = library_of(path)
    return () if library is None else (library.distribution, *library.needs)


def must_be_installed(path: Path) -> None:
    """Reject the file of a library that cannot be imported here.

    Raises:
        LoadError: it, or what it needs, is not installed.

    """
    library = library_of(path)
    if library is None or not library.absent:
        return
    missing = " and ".join(library.absent)
    whose = "" if library.distribution in library.absent else f", which {library.distribution} needs"
    how = library.installed_by or f"pip install --no-deps {' '.join(library.absent)}"
    raise LoadError(f"{path.stem}: {missing}{whose}: not installed ({how})")


def lacks(subject: Subject) -> list[str]:
    """Return the names that a subject takes from its library and that the installed version does not have."""
    library = library_of(subject.path)
    sources = None if library is None else sources_of(library.package)
    if library is None or sources is None:
        return []
    taken = taken_by_functions(subject.path, library.package).get(subject.function.__name__, ())
    return [str(one) for one in taken if not sources.has(one)]


def why_absent(subject: Subject) -> str:
    """Say that the installed version does not have what a subject declares, or nothing."""
    missing = lacks(subject)
    library = library_of(subject.path)
    if not missing or library is None:
        return ""
    return f"{library.distribution} {library.version} has no {', '.join(missing)}"


def libraries_found(paths: Iterable[str]) -> list[LibraryFound]:
    """Return what there is to say of the libraries of these kernel files."""
    found = []
    for path in dict.fromkeys(paths):
        library = library_of(path)
        sources = None if library is None else sources_of(library.package)
        if library is None or sources is None:
            continue
        absent = {s.name: missing for s in load(path).subjects if (missing := lacks(s))}
        by_function = taken_by_functions(Path(path), library.package)
        present = [s.function.__name__ for s in load(path).subjects if s.name not in absent]
        unreached: dict[str, list[str]] = {}
        for one in sources.unreached(name for function in present for name in by_function[function]):
            unreached.setdefault(one.module, []).append(one.name)
        found.append(
            LibraryFound(
                distribution=library.distribution,
                package=library.package,
                version=library.version or "not installed",
                path=path,
                absent=absent,
                unreached=unreached,
            )
        )
    return found
