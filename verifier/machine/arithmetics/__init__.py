"""Arithmetics that ride beside the IEEE run: one small file each, found by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verifier.machine.slots import Arithmetic

NAMES = ("attribution", "ball", "enclosed", "field", "field_exponential", "lifted", "taint")


def make(name: str, **settings: Any) -> Arithmetic:
    """Build an arithmetic by the name of its file.

    Raises ValueError for a name that no file has.
    """
    if name not in NAMES:
        raise ValueError(f"no arithmetic is called {name!r}; there are {', '.join(NAMES)}")
    arithmetic: Arithmetic = import_module(f"verifier.machine.arithmetics.{name}").build(**settings)
    return arithmetic
