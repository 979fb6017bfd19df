"""Fields of a record that may be computed when they are first read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, overload

FieldValue = TypeVar("FieldValue")


@dataclass(frozen=True)
class Later(Generic[FieldValue]):
    """What makes the value of a field when it is read."""

    make: Callable[[], FieldValue]


class LazyField(Generic[FieldValue]):
    """A field of a frozen dataclass without a default, given as it is or as `Later`.

    Large results of a device are copied to the host in this way only if someone wants them.
    """

    def __set_name__(self, kind: type, name: str) -> None:
        """Learn the name under which records hold the value."""
        self.name = name

    @overload
    def __get__(self, record: None, kind: type) -> LazyField[FieldValue]: ...

    @overload
    def __get__(self, record: object, kind: type) -> FieldValue: ...

    def __get__(self, record: object | None, kind: type) -> LazyField[FieldValue] | FieldValue:
        """Return the value, which is made at the first time.

        Raises AttributeError for the class, so that a dataclass takes the field for one without a default.
        """
        if record is None:
            raise AttributeError(self.name)
        held: FieldValue | Later[FieldValue] = record.__dict__[self.name]
        if isinstance(held, Later):  # what it holds, such as the memory of a device, is let go
            held = record.__dict__[self.name] = held.make()
        return held

    def __set__(self, record: object, value: FieldValue | Later[FieldValue]) -> None:
        """Hold the value, or what will make it."""
        record.__dict__[self.name] = value
