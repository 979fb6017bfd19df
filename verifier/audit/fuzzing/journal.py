"""What a campaign has done, in a folder: it goes on where it was killed, and counts nothing twice."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from verifier.audit.fuzzing.case_batch import BatchResult, Place
from verifier.audit.fuzzing.corpus import kept_document, kept_of
from verifier.audit.fuzzing.records_as_json import from_json, to_json
from verifier.audit.request import SelectionError
from verifier.audit.run_audit import Job
from verifier.audit.save import make_ignored
from verifier.records.files import write_text
from verifier.records.verdict import Line

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a campaign is: the jobs, of which sources, for how long, in how many lanes, and how it draws.

    sources: hashes of the kernel files, in the order of the jobs.
    """

    jobs: tuple[Job, ...]
    sources: tuple[str, ...]
    budget: str
    lanes: int
    steers: bool = True
    database: str = ""

    @property
    def document(self) -> dict[str, object]:
        """The request as JSON values."""
        plain = {"budget": self.budget, "steers": self.steers, "database": self.database}
        return {"jobs": [asdict(job) for job in self.jobs], "sources": list(self.sources), **plain}


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A campaign that has begun: its seed, its lanes, and the names of the corpus it replays, by job."""

    seed: int
    lanes: int
    corpus: Mapping[str, list[str]]


@dataclass(frozen=True, kw_only=True)
class Written:
    """One batch that has ended; seconds: how long the campaign had lasted then."""

    place: Place
    seconds: float
    result: BatchResult


class Journal:
    """The files `campaign.json` and `journal.jsonl` of a folder, held by one process at a time.

    A line is written whole or torn by the end of the process; a torn one was never counted.
    """

    def __init__(self, folder: Path) -> None:
        """Take the folder, and make it if there is none.

        Raises:
            SelectionError: another campaign works there.
            OSError: it cannot be written.

        """
        self.folder = folder
        make_ignored(folder)
        self._lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise SelectionError(f"--out {folder}: another campaign works in this folder") from None
        self._file: int | None = None

    @property
    def _head(self) -> Path:
        return self.folder / "campaign.json"

    @property
    def _log(self) -> Path:
        return self.folder / "journal.jsonl"

    def unfinished(self, request: Request, seed: int | None) -> Begun | None:
        """Return the campaign of this request that was stopped here, None if there is none.

        seed: that it has to have, if one is asked for.
        """
        with suppress(OSError, ValueError, LookupError, TypeError):
            told = json.loads(self._head.read_text(encoding="utf-8"))
            same = told["schema"] == SCHEMA and not told["ended"] and told["request"] == request.document
            if same and seed in {None, told["seed"]}:
                return Begun(seed=int(told["seed"]), lanes=int(told["lanes"]), corpus=dict(told["corpus"]))
        return None

    def begin(self, request: Request, begun: Begun) -> None:
        """Begin a campaign: what another one has written here is gone, but for corpus and findings."""
        self._log.unlink(missing_ok=True)
        self._write_head(request, begun, ended=False)

    def end(self, request: Request, begun: Begun) -> None:
        """Note that a campaign has spent its budget: the next one begins anew."""
        self._write_head(request, begun, ended=True)

    def _write_head(self, request: Request, begun: Begun, *, ended: bool) -> None:
        told = {"schema": SCHEMA, "ended": ended, **asdict(begun), "request": request.document}
        write_text(self._head, json.dumps(told, indent=1) + "\n")

    def entries(self) -> Iterator[Written]:
        """Yield what has been written; what is torn or damaged ends it, and is cut off."""
        if not self._log.exists():
            return
        whole = 0
        with self._log.open("rb") as file:
            for text in file:
                try:
                    if not text.endswith(b"\n"):
                        break
                    entry = _entry(json.loads(text))
                except ValueError:
                    break
                whole += len(text)
                yield entry
        os.truncate(self._log, whole)

    def add(self, entry: Written) -> None:
        """Write one batch that has ended."""
        if self._file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self._log, flags, 0o644)
        data = (json.dumps(_document(entry)) + "\n").encode()
        while data:
            data = data[os.write(self._file, data) :]

    def close(self) -> None:
        """Let go of the folder."""
        if self._file is not None:
            os.close(self._file)
        os.close(self._lock)


def _document(entry: Written) -> dict[str, object]:
    result = entry.result
    return {
        "place": list(entry.place),
        "seconds": round(entry.seconds, 3),
        "cases": result.cases,
        "error": result.error,
        "line": to_json(result.line),
        "kept": [kept_document(one) for one in result.kept],
    }


def _entry(told: object) -> Written:
    try:
        found = cast("Mapping[str, object]", told)
        job, generation, lane = cast("list[int]", found["place"])
        line = from_json(found["line"])
        if line is not None and not isinstance(line, Line):
            raise ValueError("not a line of an audit")
        result = BatchResult(
            line=line,
            error=str(found["error"]),
            kept=tuple(map(kept_of, cast("list[object]", found["kept"]))),
            cases=int(str(found["cases"])),
        )
        return Written(place=(job, generation, lane), seconds=float(str(found["seconds"])), result=result)
    except (LookupError, TypeError) as error:
        raise ValueError(f"not of a journal: {error}") from error
