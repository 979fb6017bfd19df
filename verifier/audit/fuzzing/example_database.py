"""Hypothesis's database of examples, shared through a folder or Redis, with a part for each job."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase

REDIS = ("redis://", "rediss://", "unix://")
"""How the address of a Redis server begins."""


_KINDS = (b".secondary", b".pareto")
"""Ends of the keys under which Hypothesis keeps other examples than failing ones."""


class DatabaseError(ValueError):
    """There is no such database; the text says what is missing."""


class JobDatabase(ExampleDatabase):
    """The part of a database that belongs to one job: each key is marked with the job's name."""

    def __init__(self, whole: ExampleDatabase, job: str) -> None:
        """Keep the database and the mark."""
        super().__init__()
        self._whole = whole
        self._mark = hashlib.sha256(job.encode()).digest()[:16]

    def _key(self, key: bytes) -> bytes:
        # Hypothesis makes its key of the test's source, which is that of the search for all jobs.
        return self._mark + next((kind for kind in _KINDS if key.endswith(kind)), b"")

    def save(self, key: bytes, value: bytes) -> None:
        """Keep an example."""
        self._whole.save(self._key(key), value)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """Return the examples that are kept."""
        return self._whole.fetch(self._key(key))

    def delete(self, key: bytes, value: bytes) -> None:
        """Forget an example."""
        self._whole.delete(self._key(key), value)


def database_of(where: str, job: str) -> ExampleDatabase:
    """Return the part of a database that belongs to a job.

    where: a folder, or the address of a Redis server such as redis://host:6379/0.

    Raises:
        DatabaseError: the package for Redis is not installed, or the address is none.

    """
    return JobDatabase(_whole(where), job)


@cache
def _whole(where: str) -> ExampleDatabase:
    if not where.startswith(REDIS):
        return DirectoryBasedExampleDatabase(where)
    try:
        from hypothesis.extra.redis import RedisExampleDatabase
        from redis import Redis
    except ImportError:
        raise DatabaseError(
            f"--database {where}: needs the package redis: pip install 'norm-verifier[distributed]'"
        ) from None
    try:
        return RedisExampleDatabase(Redis.from_url(where))
    except ValueError as error:
        raise DatabaseError(f"--database {where}: {error}") from error
