"""The kernel files that a command is given."""

from __future__ import annotations

from pathlib import Path

import typer

from verifier.commands.outcome import USAGE_STATUS, complain


def usable_files(paths: list[Path] | None) -> tuple[list[Path], list[str]]:
    """Return the kernel files that can be loaded, and what is wrong with the others; it is said at once.

    Raises:
        LoadError: there is one file, and it cannot be loaded.

    """
    from verifier.execution.trial_import import try_out
    from verifier.subjects.libraries import must_be_installed
    from verifier.subjects.load_file import (
        LoadError,
        NoSubjectError,
        builtin_files,
        is_skeleton,
        load_subjects,
    )

    if not paths:
        return builtin_files(), []
    usable, wrong = [], []
    for path in dict.fromkeys(paths):
        try:
            try_out(path)
            load_subjects(path)
            must_be_installed(path)
        except LoadError as error:
            if len(paths) == 1:
                raise
            if isinstance(error, NoSubjectError) and is_skeleton(path) and not all(map(is_skeleton, paths)):
                continue
            wrong.append(str(error))
            complain(str(error))
        else:
            usable.append(path)
    if not usable:
        raise typer.Exit(USAGE_STATUS)
    return usable, wrong
