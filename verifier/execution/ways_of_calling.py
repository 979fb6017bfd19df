"""A way of calling a subject that is not the plain one, as a dry run makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

from verifier.records.planned_launches import ShapePoint

Backward = Literal["inside", "after", "never"]
"""Where the backward pass is made: in the mode of the call, after it, or not at all."""
History = Literal["", "first", "after"]
"""What came before a call in its process: anything, nothing, or a call with small extents first."""


def _as_they_are(arguments: Mapping[str, object]) -> Mapping[str, object]:
    return arguments


@dataclass(frozen=True, kw_only=True)
class CallingWay:
    """One way of calling; every default is what the plain call has.

    enter: what the call is made in. given: returns the arguments as they are handed over, inside of it.
    asked: the arguments that require a gradient, None for all that may. used: the result that alone is
    differentiated, empty for all. processors: of the device's multiprocessors, 0 for as many as it has.
    small: the extents of the first call where the history is "after".
    """

    enter: Callable[[], AbstractContextManager[object]] = nullcontext
    backward: Backward = "inside"
    given: Callable[[Mapping[str, object]], Mapping[str, object]] = _as_they_are
    asked: frozenset[str] | None = None
    used: str = ""
    processors: int = 0
    history: History = ""
    small: ShapePoint = (1, 1, 0)


PLAIN = CallingWay()
