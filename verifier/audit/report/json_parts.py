"""Reads parts of a report that is JSON data, as what they must be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Document = Mapping[str, object]
"""A record as JSON has it."""


def mapping(value: object) -> Document:
    """Return a record.

    Raises:
        TypeError: it is none.

    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r} is no record")
    return value


def parts(document: Document, name: str, missing: Sequence[Document] | None = None) -> list[Document]:
    """Return a list of records of a document; missing: what stands for a list that is not there.

    Raises:
        KeyError: there is none of this name.
        TypeError: it is no list, or not of records.

    """
    found = document[name] if missing is None else document.get(name, missing)
    if not isinstance(found, list | tuple):
        raise TypeError(f"{name} is no list")
    return [mapping(one) for one in found]


def number(value: object, missing: float = math.nan) -> float:
    """Return a number as JSON has it, of which infinities and NaN are strings; missing: of null."""
    return missing if value is None else float(str(value))
