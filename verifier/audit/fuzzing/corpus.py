"""The corpus of a folder: recipes that reached something new, which later campaigns replay first."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from verifier.audit.fuzzing.steered_search import Kept
from verifier.audit.run_audit import Job
from verifier.audit.save import file_name
from verifier.cases.recipe_json import recipe_document, recipe_of
from verifier.records.files import read_bytes, write_text
from verifier.records.printable import said

SCHEMA = 1
MOST_BYTES = 1 << 20
"""Of a file of the corpus: a recipe is some lines."""


def job_name(job: Job) -> str:
    """Return the name under which a job's recipes are kept: wherever the kernel's file lies."""
    return file_name(f"{job.subject}-{job.check}-{job.dtype}")


class Corpus:
    """The files below a folder, by job; unreadable: what is wrong with those that are no recipes."""

    def __init__(self, folder: Path) -> None:
        """Remember the folder, which need not exist."""
        self.folder = folder
        self.unreadable: list[str] = []

    def names(self, job: Job) -> list[str]:
        """Return the names of a job's files, in order."""
        return sorted(path.name for path in (self.folder / job_name(job)).glob("*.json"))

    def read(self, job: Job, names: Iterable[str]) -> list[Kept]:
        """Return what files of a job hold; what has gone or cannot be read is left out."""
        found = []
        for name in names:
            path = self.folder / job_name(job) / name
            try:
                found.append(kept_of(json.loads(read_bytes(path, MOST_BYTES).decode())))
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                self.unreadable.append(f"{path}: {said(error)}")
        return found

    def add(self, job: Job, kept: Iterable[Kept]) -> None:
        """Write what is not there yet.

        Raises:
            OSError: it cannot be written.

        """
        folder = self.folder / job_name(job)
        for one in kept:
            document = kept_document(one)
            name = hashlib.sha256(json.dumps(document["recipe"], sort_keys=True).encode()).hexdigest()[:16]
            path = folder / f"{name}.json"
            if not path.exists():
                folder.mkdir(parents=True, exist_ok=True)
                write_text(path, json.dumps({"schema": SCHEMA, **document}, indent=1) + "\n")

    def tidy(self, job: Job) -> None:
        """Delete the files of a job whose scores others of it have beaten, and which reached nothing else."""
        names = self.names(job)
        every = dict(zip(names, self.read(job, names), strict=False))
        if len(every) != len(names):  # one cannot be read: which is which is not known
            return
        for name in superseded(every):
            with suppress(OSError):
                (self.folder / job_name(job) / name).unlink()


def superseded(kept: Mapping[str, Kept]) -> list[str]:
    """Return the names of what has no features and is the best of none of its scores."""
    best: dict[str, float] = {}
    for one in kept.values():
        for what, score in one.scores:
            best[what] = max(score, best.get(what, 0.0))
    return [
        name
        for name, one in kept.items()
        if not one.features and all(score < best[what] for what, score in one.scores)
    ]


def kept_document(kept: Kept) -> dict[str, object]:
    """Return what is kept as JSON values."""
    scores = {what: score.hex() for what, score in kept.scores}
    return {"recipe": recipe_document(kept.recipe), "features": list(kept.features), "scores": scores}


def kept_of(document: object) -> Kept:
    """Return what `kept_document` wrote.

    Raises:
        ValueError: it is none.

    """
    try:
        told = cast("Mapping[str, object]", document)
        features = cast("Sequence[str]", told["features"])
        scores = cast("Mapping[str, str]", told["scores"])
        return Kept(
            recipe=recipe_of(cast("Mapping[str, object]", told["recipe"])),
            features=tuple(map(str, features)),
            scores=tuple((what, float.fromhex(score)) for what, score in scores.items()),
        )
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"not of a corpus: {said(error)}") from error
