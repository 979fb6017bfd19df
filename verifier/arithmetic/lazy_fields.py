"""Fields of a record that may be computed when they are first read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, overload

Value = TypeVar("Value")


@dataclass(frozen=True)
class Later(Generic[Value]):
    """What makes the value of a field when it is read."""

    make: Callable[[], Value]


class LazyField(Generic[Value]):
    """A field of a frozen dataclass without a default, given as it is or as `Later`.

    Large results of a device are copied to the host in this way only if someone wants them.
    """

    def __set_name__(self, kind: type, name: str) -> None:
        """Learn the name under which records hold the value."""
        self.name = name

    @overload
    def __get__(self, record: None, kind: type) -> LazyField[Value]: ...

    @overload
    def __get__(self, record: object, kind: type) -> Value: ...

    def __get__(self, record: object | None, kind: type) -> LazyField[Value] | Value:
        """Return the value, which is made at the first time.

        Raises AttributeError for the class, so that a dataclass takes the field for one without a default.
        """
        if record is None:
            raise AttributeError(self.name)
        held: Value | Later[Value] = record.__dict__[self.name]
        if isinstance(held, Later):  # what it holds, such as the memory of a device, is let go
            held = record.__dict__[self.name] = held.make()
        return held

    def __set__(self, record: object, value: Value | Later[Value]) -> None:
        """Hold the value, or what will make it."""
        record.__dict__[self.name] = value
