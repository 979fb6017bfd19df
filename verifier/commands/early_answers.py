"""Answers a command line that cannot be meant before torch is imported, which takes seconds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from strategies.registry import VARIABLE, names_defining
from verifier.audit.request import must_be_budget, must_be_known
from verifier.commands.outcome import complain, must_hold_files, stop


def reject_early(
    paths: list[Path] | None,
    dtypes: list[str] | None = None,
    checks: list[str] | None = None,
    backend: str | None = None,
    *,
    budget: str | None = None,
    findings: Path | None = None,
) -> None:
    """Reject what cannot be meant before anything is imported that takes seconds."""
    if budget is not None:
        must_be_budget(budget)
    must_be_names(dtypes=dtypes or (), checks=checks or (), backends=[backend] if backend else ())
    if findings is not None:
        must_hold_files(findings)
    must_be_files(paths or ())


def must_be_names(
    *, dtypes: Iterable[str] = (), checks: Iterable[str] = (), backends: Iterable[str] = ()
) -> None:
    """Reject dtypes, checks and backends that do not exist.

    Built-in checks and backends have the names of their files. In extensions files may define any: where
    there are some, names are left to whoever imports them.

    Raises:
        SelectionError: one does not.

    """
    from strategies.formats import FORMATS

    must_be_known("dtype", dtypes, tuple(FORMATS))
    if VARIABLE not in os.environ:
        must_be_known("check", checks, names_defining("verifier.checks", "NAME"))
        must_be_known("backend", backends, names_defining("verifier.execution.backends", "BACKEND"))


def must_be_files(paths: Sequence[Path]) -> None:
    """End with a line for each path if none of them can be a kernel file; others are loaded later."""
    from verifier.subjects.load_file import LoadError, source_file

    wrong = []
    for path in dict.fromkeys(paths):
        try:
            source_file(path)
        except LoadError as error:
            wrong.append(str(error))
        else:
            return
    for text in wrong[:-1]:
        complain(text)
    if wrong:
        stop(wrong[-1])


def must_be_libraries(names: Sequence[str]) -> list[Path]:
    """Return the files that declare these libraries; a name may have hyphens for its underscores.

    Raises:
        SelectionError: there is none of such a name.

    """
    if not names:
        return []
    from verifier.subjects.libraries import library_files

    files = library_files()
    of_files = {name: name.replace("-", "_") for name in names}
    must_be_known("library", [name for name in names if of_files[name] not in files], tuple(files))
    return [files[of_files[name]] for name in names]


def must_be_case(path: Path) -> None:
    """Reject the path of a case (a witness is FILE#NAME) where there is no file.

    Raises:
        ValueError: there is none.

    """
    if not any(os.path.lexists(file) for file in (path, path.with_name(path.name.partition("#")[0]))):
        raise ValueError(f"{path}: cannot be read: no such file")
