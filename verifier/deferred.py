"""Fields of a record that are computed when they are first read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Record = TypeVar("Record")


def deferrable(kind: type[Record]) -> type[Record]:
    """Let records of a frozen dataclass be made by `defer`; its fields must have no defaults."""

    def first_read(record: Any, name: str) -> Any:
        waiting: dict[str, Callable[[], Any]] = record.__dict__.get("_deferred", {})
        if name not in waiting:
            raise AttributeError(f"{type(record).__name__!r} object has no attribute {name!r}")
        value = record.__dict__[name] = waiting[name]()
        del waiting[name]  # and what it held, such as the memory of a device
        return value

    kind.__getattr__ = first_read  # type: ignore[attr-defined]
    return kind


def defer(kind: type[Record], later: Mapping[str, Callable[[], Any]], **fields: Any) -> Record:
    """Return a record with `fields` now and the fields `later` when they are read.

    Large results of a device are copied to the host in this way only if someone wants them.
    """
    record = object.__new__(kind)
    record.__dict__.update(fields, _deferred=dict(later))
    return record
